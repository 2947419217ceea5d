"""Files of pods on the host: volumes and mounts, ``/etc/hosts``, and logs."""
