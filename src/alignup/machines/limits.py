"""How much is read of a file, directory or archive that describes a machine.

Limits of the machine itself are in ``align.machine_limits``. Both are above what the largest machines need, and keep
the memory that any input takes below a gigabyte.
"""

# A text: our YAML and JSON, cAdvisor's JSON, hwloc's XML.
MAX_TEXT_BYTES = 16 << 20
MAX_YAML_VALUES = 400_000  #: values and keys
MAX_JSON_MARKS = 2_000_000  #: commas, colons and brackets
MAX_XML_OBJECTS = 1 << 17
MAX_XML_VALUES = 2 << 20  #: page sizes and distances
MAX_DEPTH = 32  #: of nested lists and objects in YAML
MAX_XML_DEPTH = 128

# A file of /sys or /proc, from a directory or an archive.
MAX_FILE_BYTES = 1 << 18  #: a list of 8192 CPUs takes 40 kB
MAX_PROC_BYTES = 64 << 20  #: of a file in ``/proc``; ``cpuinfo`` takes about 16 MB
MAX_TOTAL_BYTES = 256 << 20  #: of all files of a directory that are read
MAX_NAMES = 1 << 17  #: in a directory

# An archive.
MAX_ARCHIVE_BYTES = 512 << 20  #: uncompressed; a machine with 2048 CPUs takes about 130 MB with headers
MAX_ARCHIVE_CONTENT_BYTES = 128 << 20  #: of names and contents, which are kept in memory
MAX_HEADER_BYTES = 1 << 17  #: of one member, with extended headers
MAX_GLOBAL_HEADERS = 100
MAX_MEMBERS = 1 << 19
MAX_DIRECTORIES = 1 << 17  #: including those that only the paths of members imply
MAX_PATH = 512  #: characters of a path or of the target of a link
MAX_PATH_PARTS = 32
