"""Why a container, or the sandbox of a pod, cannot be started now."""


class PodStartError(Exception):
    """It cannot be started now; *reason* is Kubernetes' word for it, the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
