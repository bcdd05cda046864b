#!/bin/bash
# Usage: clients.sh CHECKOUT, where lokt is installed. Installs the clients of a checkout in an empty directory as their pages say, and runs
# the examples of those pages, word for word but for the port, against the daemon that they start.
set -euo pipefail
checkout=$1
cd "$(mktemp -d)"
mkdir clients
cp -r "$checkout"/clients/{python,typescript} clients/
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export LOKTD_LISTEN=127.0.0.1:$port
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/usr/share/python-wheels # setuptools for Debian's Python, without a network

block() { # block CLIENT LANGUAGE N: the Nth block in a language of a client's page
	awk -v fence="\`\`\`$2" -v n="$3" '$0 == fence { on = ++i == n; next } $0 == "```" { on = 0 } on' "clients/$1/README.md"
}
begin() { # begin CLIENT: what its page says first, which leaves a daemon behind
	eval "$(block "$1" console 1 | sed -n 's/^\$ //p' | sed "s/7117/$port/")"
	daemon=$!
	for _ in {1..600}; do loktd health >/dev/null 2>&1 && break; sleep 0.05; done
}
prints() { # prints WANT COMMAND...: that a command writes a line, and nothing else
	local got
	got=$("${@:2}") && [[ $got == $1 ]] || { echo "clients.sh: ${*:2} ends with $? and prints: $got"; exit 1; }
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

/usr/bin/python3 -m venv venv
PATH=$PWD/venv/bin:$PATH
begin python
[ -e venv/lib/python3*/site-packages/lokt/py.typed ] || { echo "clients.sh: the package has no types"; exit 1; }
for n in 1 2 3; do block python python $n >example$n.py; done
cat >>example3.py <<'PY'
import threading
threading.Thread(target=worker.run).start()
print(jobs.wait(job_id, timeout=60)["result"])
worker.drain()
PY
prints "only one at a time, token 1" python3 example1.py
prints "token 2" python3 example2.py
prints "{'sum': 6}" python3 example3.py
kill "$daemon"; wait "$daemon"

rm lokt.db*
begin typescript
head=$(block typescript ts 1 | sed '/^const lokt/q')
block typescript ts 1 >example1.mts
{ echo "$head"; block typescript ts 2; echo 'console.log(lock.token);'; } >example2.mts
{ echo "$head"; block typescript ts 3; } >example3.mts
cat >>example3.mts <<'TS'
const working = worker.run();
console.log((await lokt.jobs.wait(id)).result);
worker.drain();
await working;
TS
node clients/typescript/node_modules/typescript/bin/tsc --strict --target es2022 --lib es2022,esnext.disposable,dom --module nodenext \
	--typeRoots clients/typescript/node_modules/@types example[123].mts
prints "only one at a time, token 1" node example1.mjs
prints 2 node example2.mjs
prints 6 node example3.mjs
kill "$daemon"; wait "$daemon"
