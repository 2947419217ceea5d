"""Device plugins and PodResources: the kubelet's gRPC interfaces on unix sockets.

``exchange`` is where plugins register, are listened to and are called; ``pod_resources`` tells whoever asks who has
what. The wiring hands both what they need to know of the rest, and registers ``counting`` with the metrics.
"""

import os

#: gRPC writes a line on the standard error output whenever a peer goes away; it reads this when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
