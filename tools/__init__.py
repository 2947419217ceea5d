"""Programs that build packages, images and documents from this repository; no part of Alignup itself."""
