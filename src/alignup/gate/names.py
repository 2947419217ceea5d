"""The names by which pods, namespaces and objects of the API server refer to the gate."""

from alignup.documents.host_state import GROUP

GATE = f"{GROUP}/placement"  #: the scheduling gate
LABEL = f"{GROUP}/gate"  #: of a pod or a namespace; with it, pods get the gate
OPT_IN, OPT_OUT = "enabled", "disabled"  #: its values; a pod can opt out of what its namespace has chosen
NODE_ANNOTATION = f"{GROUP}/node"  #: of a released pod: the node that was chosen for it
