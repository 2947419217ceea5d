"""How long nodes that are kept for pods of a namespace may keep pods of others out.

The first time that is the patience limit, then half of it, a quarter, and so on: twice the limit in all, even if the
namespace deletes and creates pods. After each time no node is kept for it for a while, which doubles. A namespace that
has kept nobody out for long begins anew.
"""

from dataclasses import dataclass

from alignup.placement.scheduling.options import PATIENCE_LIMIT_SECONDS

BACK_OFF = 2  #: by which times become shorter, and the pauses between them longer
FORGIVEN_LIMITS = 24  #: patience limits without keeping others out, after which a namespace begins anew


@dataclass(slots=True)
class _Record:
    last: float  #: when it kept others out
    seconds: float = 0.0  #: for which it has done so since its last pause
    pauses: int = 0
    until: float = float("-inf")  #: of its last pause


class NamespacePatience:
    def __init__(self) -> None:
        self.limit = PATIENCE_LIMIT_SECONDS
        self._records: dict[str, _Record] = {}

    def may_keep(self, namespace: str, now: float) -> bool:
        """Return whether nodes may be kept for pods of a namespace, which is not in a pause."""
        record = self._records.get(namespace)
        return record is None or record.until <= now

    def forgive(self, now: float) -> None:
        """Let namespaces begin anew that have kept nobody out for long."""
        seconds = self.limit * FORGIVEN_LIMITS
        self._records = {name: record for name, record in self._records.items() if now - record.last < seconds}

    def kept_out(self, namespace: str, seconds: float, now: float) -> bool:
        """Note that pods of other namespaces were kept out for *seconds* more; return whether this must pause."""
        record = self._records.setdefault(namespace, _Record(now))
        record.last = now
        record.seconds = record.seconds + seconds
        factor = BACK_OFF ** min(record.pauses, 16)
        if record.seconds < self.limit / factor:
            return False
        record.until = now + self.limit * factor
        record.seconds = 0.0
        record.pauses = record.pauses + 1
        return True
