"""A simulated kubelet in simulated time, and its observer: when it admits and ends pods, restarts, and writes files."""

from collections.abc import Callable
from dataclasses import replace

from alignup.align.bits import NodeSet
from alignup.align.host import Host, Settings
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope
from alignup.placement.host_report import HostReport, PodStage
from alignup.placement.steered import ANYWHERE
from alignup.testing.simulated_kubelet import PodAdmission
from tests.align.hosts import GPU
from tests.placement.clusters import report
from tests.placement.model_api import PREEMPTED, ApiServer, PodObject, Watch

RECONCILE = 10.0  #: seconds until a kubelet removes ended pods from its files by itself


class ModelKubelet(PodAdmission):
    def __init__(self, name: str, host: Host, api: ApiServer, publish: Callable[[HostReport], object]) -> None:
        super().__init__(host)
        self.name, self.api, self.world = name, api, api.world
        self.publish = publish
        self.running: dict[str, tuple[float, int]] = {}  #: uid → since when, and how many exclusive CPUs
        self.busy = 0.0  #: CPU seconds of pods that ended
        self.waiting: list[PodObject] | None = None  #: pods that were bound while the kubelet was down
        self.starts = self.sequence = 0
        self.preempted = 0  #: pods that were ended for critical ones
        self.last_report = self.last_flip = -10.0
        self.reporting = False
        api.kubelets[name] = Watch(self.world, self.handle, (0.001, 0.3))
        self.report()

    def handle(self, pod_object: PodObject, stage: PodStage, _: str) -> None:
        if stage is PodStage.RUNNING:
            if self.waiting is None:
                self.admit_bound(pod_object)
            else:
                self.waiting.append(pod_object)
        elif stage is PodStage.TERMINATING:
            self.world.after(self.world.random.uniform(0.01, 3), lambda: self.finish(pod_object))
        else:
            self.forget(pod_object.pod.uid)  # the object is gone: a pod that was deleted by force ends here

    def admit_bound(self, pod_object: PodObject, markers: NodeSet = ANYWHERE) -> None:
        uid, decision = pod_object.pod.uid, self.admit(pod_object.pod, markers)
        if decision.admitted:
            self.running[uid] = self.world.now, self.host.ledger.cpus.owned(uid).bit_count()
            self.world.after(pod_object.lifetime, lambda: self.finish(pod_object))
        elif uid in self.api.pods:
            self.api.record(uid, PodStage.ENDED, decision.rejection.reason if decision.rejection else "")
        self.changed()

    def preempt(self, uid: str) -> None:
        self.forget(uid)
        self.api.end(uid, PREEMPTED)
        self.preempted += 1

    def finish(self, pod_object: PodObject) -> None:
        """A pod has ended; the API server learns of it later."""
        uid = pod_object.pod.uid
        if uid in self.running:
            self.forget(uid)
            late = self.world.random.uniform(0.001, 0.5)
            self.world.after(late, lambda: self.api.end(uid))

    def forget(self, uid: str) -> None:
        if uid in self.running:
            since, cpus = self.running.pop(uid)
            self.busy += cpus * (self.world.now - since)
            self.end(uid)
            self.world.after(RECONCILE, self.reconcile)

    def reconcile(self) -> None:
        self.remove_ended()
        self.changed()

    def restart(self, settings: Settings | None = None, *, drained: bool = False) -> None:
        """Restart, with other settings if given; *drained*: all pods have ended, and the state files are deleted."""
        if self.waiting is None:
            self.waiting = []
            self.world.after(self.world.random.uniform(0.5, 3), lambda: self.start(settings, drained=drained))

    def start(self, settings: Settings | None = None, *, drained: bool = False) -> None:
        if drained:
            for uid in tuple(self.running):
                self.forget(uid)
                self.api.end(uid)
            self.ended.clear()
        if settings is not None:
            self.host = Host(self.host.machine, settings, ledger=None if drained else self.host.ledger)
        waiting, self.waiting = self.waiting or [], None
        self.starts += 1
        for pod_object in sorted(waiting, key=lambda bound: bound.created):
            if pod_object.stage is PodStage.RUNNING:
                self.admit_bound(pod_object)
            else:  # it was deleted meanwhile, and never ran
                self.api.end(pod_object.pod.uid)
        self.changed()

    def reconfigure(self) -> None:
        """Restart with another policy and scope, or with another reservation, for which the host is drained."""
        random, settings = self.world.random, self.host.settings
        if random.random() < 0.3:
            cpus = Quantity.parse(str(random.randint(1, 2)))
            reserved = replace(settings.cpus, reservation=cpus)
            reservation = {**settings.reservation, "cpu": cpus}
            self.restart(replace(settings, cpus=reserved, reservation=reservation), drained=True)
            return
        policy = random.choice((Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED, Policy.BEST_EFFORT))
        topology = replace(settings.topology, policy=policy, scope=random.choice(tuple(Scope)))
        self.restart(replace(settings, topology=topology))

    def flip_device(self) -> None:
        """A device changes its health, and stays so for a while: reports do not show what happened between them."""
        if self.world.now < self.last_flip + 10:
            return
        self.last_flip = self.world.now
        inventory = self.host.ledger.devices.inventories[GPU]
        index = self.world.random.randrange(len(inventory.devices))
        devices = [
            replace(device, healthy=device.healthy != (place == index))
            for place, device in enumerate(inventory.devices)
        ]
        self.host.update_devices(GPU, devices)
        self.changed()

    def changed(self) -> None:
        """The files changed: the observer reads them soon, at most once a second."""
        if not self.reporting:
            self.reporting = True
            soon = max(self.last_report + 1.0 - self.world.now, self.world.random.uniform(0.02, 0.7))
            self.world.after(soon, self.report)

    def report(self) -> None:
        self.reporting = False
        self.last_report = self.world.now
        self.sequence += 1
        self.publish(report(self.name, self.host, self.sequence, kubelet=str(self.starts)))
