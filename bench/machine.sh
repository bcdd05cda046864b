#!/bin/sh
# Eight builds at once in a control group of two cores: with nothing between them, with slots, and with CPU tokens. It needs
# root, Linux with the controllers cpu and memory of version 1 or 2, make, cc, and lokt in $LOKT (default: on the path).
set -eu
lokt=${LOKT:-lokt}
dir=$(mktemp -d)
group=lokt-bench-$$
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	cpu=/sys/fs/cgroup/$group memory=$cpu peak=memory.peak
else
	cpu=/sys/fs/cgroup/cpu/$group memory=/sys/fs/cgroup/memory/$group peak=memory.max_usage_in_bytes
fi
trap 'rmdir $cpu $memory 2>/dev/null || :; rm -rf "$dir"' EXIT
LOKT_ROOT=$dir/locks
export LOKT_ROOT

i=0
{
	while [ $i -lt ${FUNCTIONS:-700} ]; do
		echo "int f$i(int a,int b){int s=0;for(int i=0;i<a;i++)for(int j=i;j<b;j++)s+=(i*j)%(a+$i)+(s>>3)*(b-$i);return s;}"
		i=$((i + 1))
	done
} > "$dir/code.c"
printf 'all: 1.o 2.o 3.o\n%%.o:\n\tcc -O2 -c ../code.c -o $@\n' > "$dir/Makefile"

total() { sed -n 's/^some.*total=//p' "/proc/pressure/$1"; }
measure() {
	what=$1
	shift
	mkdir -p "$cpu" "$memory"
	if [ "$cpu" = "$memory" ]; then
		echo "200000 100000" > "$cpu/cpu.max"
	else
		echo 100000 > "$cpu/cpu.cfs_period_us"
		echo 200000 > "$cpu/cpu.cfs_quota_us"
	fi
	io=$(total io) waits=$(total cpu) began=$(date +%s%N)
	sh -c '
		for at in '"$cpu $memory"'; do echo $$ > $at/cgroup.procs; done
		for n in 1 2 3 4 5 6 7 8; do
			mkdir -p '"$dir"'/$n && cd '"$dir"'/$n && rm -f *.o && cp ../Makefile . && "$@" > log 2>&1 &
		done
		wait' sh "$@"
	ended=$(date +%s%N)
	echo "$what: $(((ended - began) / 1000000)) ms, peak memory $(($(cat "$memory/$peak") / 1048576)) MiB," \
		"io pressure $((($(total io) - io) / 1000)) ms, cpu pressure $((($(total cpu) - waits) / 1000)) ms," \
		"done $(ls "$dir"/[1-8]/*.o | wc -l) of 24"
	rmdir "$cpu" "$memory" 2>/dev/null || :
}
measure "nothing" make -j4
measure "--slots auto" "$lokt" guard build --slots auto --wait -- make -j4
measure "jobserver" "$lokt" jobserver --root "$LOKT_ROOT" -- make -j4
