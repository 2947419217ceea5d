# Records this machine: writes the files that describe its topology to standard output, as a tar.gz.
# It needs sh, cp, grep, ln, mktemp, tar and gzip, and no privileges. It leaves out the CPU model and serial numbers.
# If a kubelet is installed, here or in /host of a debugging pod, its version is recorded too.
cd / && d=$(mktemp -d) && s=sys/devices/system
keep() { for i in $1; do [ -d "$i" ] && k="$d/${3:-$i}" && mkdir -p "$k" && (cd "$i" && cp -P $2 "$k" 2>/dev/null); done; }
keep "$s/cpu $s/node" "online offline present possible"
keep "$s/cpu/cpu[0-9]*" "online node[0-9]*"
keep "$s/cpu/cpu[0-9]*/topology" "*[!n]"
keep "$s/cpu/cpu[0-9]*/cache/index[0-9]*" "[ilst]*"
keep "$s/node/node[0-9]*" "cpulist cpumap distance meminfo cpu[0-9]*"
keep "sys/kernel/mm/hugepages sys/bus/pci/devices $s/node/node[0-9]*/hugepages" ""
keep "sys/kernel/mm/hugepages/* $s/node/node[0-9]*/hugepages/*" "nr_hugepages free_hugepages"
for j in sys/bus/pci/devices/*; do
  t=$(cd -P "$j" 2>/dev/null && pwd) || continue
  # The path from the root complex on shows the bridges; what is above may identify the machine.
  t=${t#"${t%%/pci[0-9a-f][0-9a-f][0-9a-f]*}"}
  [ "$t" ] && ln -s "../../../devices$t" "$d/$j" && t="sys/devices$t"
  keep "$j" "class vendor device numa_node local_cpu*" "$t"
done
keep proc meminfo
keep proc/sys/kernel numa_balancing
grep -E '^(processor|physical id|core id|siblings|cpu cores|vendor_id)[[:space:]]*:' proc/cpuinfo > "$d/proc/cpuinfo"
PATH="$PATH:/host/usr/bin" kubelet --version > "$d/kubelet-version" 2>/dev/null || rm "$d/kubelet-version"
cd "$d" && tar -czf - *; rm -r "$d"
