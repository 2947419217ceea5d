"""The exit codes of all commands; docs/exit-codes.md shows this table."""

OK, FAILED, USAGE = 0, 1, 2
RUN_REJECTED, RUN_FAILED, NOT_EXECUTABLE, NOT_FOUND = 124, 125, 126, 127
INTERRUPTED, PIPE_CLOSED = 130, 141

TEXTS = {
    OK: "Yes: the pod is admitted, the kubelet is healthy, nothing has drifted, the command is done.",
    FAILED: "No: the pod is rejected, something is wrong, has drifted or was not found. "
    "Or a failure: a server does not answer, a file cannot be written, a library is not installed.",
    USAGE: "Wrong usage or unusable input: an unknown option, a file that is missing or invalid.",
    RUN_REJECTED: "`alignup run` only: the run is rejected.",
    RUN_FAILED: "`alignup run` only: it failed before the command started, also because of wrong usage.",
    NOT_EXECUTABLE: "`alignup run` only: the command cannot be executed.",
    NOT_FOUND: "`alignup run` only: the command is not found. All other codes of `alignup run` are the command's own, "
    "or 128+N after signal N.",
    INTERRUPTED: "Interrupted by Ctrl-C.",
    PIPE_CLOSED: "The reader of standard output closed it.",
}
