#!/usr/bin/env bash
# mpi_death_test.sh JOB: a job under mpirun whose rank dies, throws or calls something else ends soon, with a reason.
set -u
job=$1
mpirun=(mpirun --allow-run-as-root --oversubscribe)
failed=0

complain() {
  echo "FAILED: $1"
  echo "$output" | sed 's/^/  | /'
  failed=1
}

# run HOW: leaves the job's words in $output; it must end by itself and with another status than 0. How long that takes is
# printed, starting MPI included, not judged: a busy machine is no fault.
run() {
  local begin end status
  begin=$(date +%s%N)
  output=$(timeout -k 1 60 "${mpirun[@]}" -n 4 "$job" "$1" 2>&1)
  status=$?
  end=$(date +%s%N)
  local milliseconds=$(((end - begin) / 1000000))
  echo "$1: status $status after $milliseconds ms"
  [ "$status" -ne 0 ] || complain "$1: the job ended with status 0"
  [ "$milliseconds" -lt 60000 ] || complain "$1: the job hung"
}

says() { grep -q -- "$2" <<<"$output" || complain "$1: no line says \"$2\""; }

run die
for rank in 0 1 3; do says die "rank $rank on host .*: ending, because mpirun ended the job"; done
run throw
says throw "rank 2: planted"
run abort
says abort "rank 2: operator said stop"
run mismatch
says mismatch "group work: rank 1 calls broadcast of 8 bytes from rank 0 (its call 22), rank 0 calls broadcast of 10 bytes"
run size
says size "rank 0 sent 10 bytes with tag 2 to rank 1, which expects 8"
run late
says late "group work: barrier: waited 1 s for ranks that did not call"

output=$("${mpirun[@]}" -n 1 -x TRIREME_HOST_ID=a "$job" host : -n 2 -x TRIREME_HOST_ID=b "$job" host 2>&1)
says host "rank 0 on host 0"
says host "rank 2 on host 1"
output=$("${mpirun[@]}" -n 1 -x TRIREME_HOST_ID=a "$job" host : -n 1 -x TRIREME_HOST_ID=b "$job" host : \
  -n 1 -x TRIREME_HOST_ID=a "$job" host 2>&1) && complain "host: ranks of a host apart were taken"
says host "rank 2 is on host a as rank 0 is, but rank 1 between them is on host b"
exit $failed
