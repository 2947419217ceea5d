"""Many pods, and many settings: what becomes of a workload on a machine, and which settings suit it best.

``events`` is what a workload is: pods that come and go. ``trace`` reads and writes it, ``generate`` makes one up.
``simulate`` plays it on a host, ``report`` tells what came of it, ``compare`` plays it under many settings
(``variants``) side by side. Nothing here decides anything: ``align.host`` does.
"""
