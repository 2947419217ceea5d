"""Settings of the scheduling state."""

from dataclasses import dataclass

DEFAULT_SCHEDULER = "default-scheduler"
PATIENCE_SECONDS = 60.0
PATIENCE_LIMIT_SECONDS = 900.0
UNBOUND_SECONDS = 30.0  #: after which a released pod that its scheduler has not bound is given up
HOLD_SECONDS = 5.0  #: for which observers wait for a pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderOptions:
    #: nodes that are offered, at most; ``None``: the best one, or several if the scheduler's own scores matter
    offered: int | None = None
    allow_unknown: bool = False  #: whether nodes without HostState are offered
    patience: float = PATIENCE_SECONDS  #: seconds after which a node is kept for a pod that others overtake
    #: seconds for which a kept node may keep pods of other namespaces out, whichever front end keeps it
    patience_limit: float = PATIENCE_LIMIT_SECONDS
    schedulers: frozenset[str] = frozenset({DEFAULT_SCHEDULER})  #: that are known although they have not asked
    steer_hold: float = HOLD_SECONDS  #: for which observers wait for a steered pod
    #: whether the scheduler asks for victims where it needs none itself, as from Kubernetes 1.38 on; ``None``: as the
    #: version of the API server suggests
    chooses_victims: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    parallel: int = 32  #: releases that are written at the same time
    patience: float = PATIENCE_SECONDS  #: seconds after which a node is kept for a pod that others overtake
    unbound: float = UNBOUND_SECONDS  #: seconds after which a release that is not bound gives its slot back
    share: float = 0.5  #: of all slots that one namespace may have while pods of others wait
    schedulers: frozenset[str] = frozenset({DEFAULT_SCHEDULER})  #: schedulers that pods are released to
    retry: float = 10.0  #: seconds after a release that the API server did not accept
    avoid: float = 600.0  #: seconds for which pods of a controller avoid a node where one was not scheduled
    replace_stuck: bool = False  #: whether to evict released pods that are not scheduled and will be created again
