#!/bin/bash
# Usage: chroot.sh DIRECTORY OLD NEW README-TEST, from the checkout, in mount and process namespaces of its own. Installs the package of
# the release in OLD, uses it, upgrades it to the one in NEW, removes and purges it, all on top of this machine's root.
set -euo pipefail
place=$1 old=$2 new=$3 readme=$4
mount -t tmpfs tmpfs "$place"
mkdir "$place"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" "$place/root"
root=$place/root
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir "$root/release"
cp "$old"/*.deb "$root/release/old.deb"
cp "$new"/*.deb "$root/release/new.deb"
# A service manager that only writes down what it is told.
mkdir -p "$root/run/systemd/system"
rm -f "$root/usr/bin/systemctl"
printf '#!/bin/sh\necho "$*" >>/release/systemctl\n' >"$root/usr/bin/systemctl"
chmod 755 "$root/usr/bin/systemctl"

fail() { echo "chroot.sh: line ${BASH_LINENO[0]}: $*"; exit 1; }
in_root() { chroot "$root" "$@"; }
dpkg_in() { in_root dpkg --force-unsafe-io --no-triggers "$@"; }
daemon() { # runs loktd as the unit does, until stop
	chroot "$root" setpriv --reuid loktd --regid loktd --clear-groups env -i STATE_DIRECTORY=/var/lib/loktd LOKTD_LISTEN=127.0.0.1:0 loktd >"$place/ready" 2>"$place/log" &
	pid=$!
	for _ in {1..600}; do grep -qs listening "$place/ready" && break; sleep 0.05; done
	url=$(sed -n 's/.*listening on //p' "$place/ready")
	[ -n "$url" ] || fail "loktd does not start: $(cat "$place/log")"
}
stop() { kill "$pid"; wait "$pid" || fail "loktd ends with $?: $(cat "$place/log")"; }

dpkg_in --install /release/old.deb
[[ $(in_root lokt version) == "lokt 1.0.0-rc.1 ("* ]] || fail "$(in_root lokt version)"
in_root systemd-analyze verify loktd.service || fail "the unit is not in order"
mkdir -p "$root/etc/systemd/system/nightly.service.d"
printf '[Service]\nExecStart=/usr/bin/true\n' >"$root/etc/systemd/system/nightly.service"
sed 's|COMMAND|/usr/bin/true|' deploy/systemd/guard.conf >"$root/etc/systemd/system/nightly.service.d/guard.conf"
in_root systemd-analyze verify nightly.service || fail "the drop-in is not in order"
[ "$(in_root stat -c '%U %a' /var/lib/loktd)" = "loktd 700" ] || fail "the directory of the store is not the daemon's"
[ "$(cat "$root/release/systemctl")" = $'daemon-reload\ntry-restart loktd.service' ] || fail "told systemd: $(cat "$root/release/systemctl")"
! in_root pgrep -x loktd || fail "the package started what listens"
in_root bash -c 'source /usr/share/bash-completion/completions/lokt && complete -p lokt' >/dev/null
[ -s "$root/usr/share/man/man1/lokt-guard.1" ] || fail "there is no manual"

# The first page, word for word, with the programs of the package.
cp "$readme" "$root/release/readme.test"
in_root env -C "$PWD/cmd/lokt" TEST_PROGRAMS=/usr/bin /release/readme.test -test.run '^TestExamplesOfTheReadme' || fail "the first page"

# The pages of the clients, too.
in_root env -u LOKT_SERVER bash "$PWD/tools/release/testdata/clients.sh" "$PWD" || fail "the pages of the clients"

echo LOKTD_LOG_LEVEL=debug >"$root/etc/lokt/loktd.env"
daemon
in_root env LOKT_OWNER=ana LOKT_SERVER="$url" lokt lock kept --ttl 1h
stop
dpkg_in --install /release/new.deb
[[ $(in_root loktd version) == "loktd 1.0.0 ("* ]] || fail "$(in_root loktd version)"
[ -s "$root/etc/lokt/loktd.env" ] || fail "the upgrade lost a setting"
daemon
in_root env LOKT_SERVER="$url" lokt status kept | grep -q ana || fail "the upgrade lost a lock"
stop

dpkg_in --remove lokt
[ -s "$root/var/lib/loktd/loktd.db" ] || fail "removing the package lost the store"
grep -qx 'disable --now loktd.service' "$root/release/systemctl" || fail "a removed daemon goes on"
dpkg_in --purge lokt
! in_root id loktd 2>/dev/null || fail "the user is still there"
rm -r "$root/release"
left=$(cd "$place/upper" && find . -iname '*lokt*' -not -type c -not -path './tmp/*' -not -path './root/.cache/*')
[ -z "$left" ] || fail "left: $left"
echo "all is well"
