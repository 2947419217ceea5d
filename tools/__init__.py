"""What builds packages, images and documents from this repository; no part of the installed program."""
