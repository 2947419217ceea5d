"""The kubelet's gRPC interfaces for device plugins and PodResources, on Unix sockets.

``manager`` registers device plugins, follows their device lists and calls them; ``pod_resources`` serves who holds
which resources.
"""

import os

#: gRPC logs a line to standard error whenever a peer disconnects; it reads this variable when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
