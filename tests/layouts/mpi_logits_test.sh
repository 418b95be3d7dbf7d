#!/usr/bin/env bash
# mpi_logits_test.sh TRIREME MODEL: ranks as processes write the same file, byte for byte, as ranks as threads; and a
# job whose rank is killed ends within seconds, with a line from every survivor.
set -u
trireme=$1
model=$2
mpirun=(mpirun --allow-run-as-root --oversubscribe)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

complain() {
  echo "FAILED: $1"
  failed=1
}

# ids LENGTH...: a JSON list of prompts.
ids() {
  awk 'BEGIN { srand(7); printf "["
    for (i = 1; i < ARGC; ++i) {
      printf "%s", (i > 1 ? ", [" : "[")
      for (t = 0; t < ARGV[i]; ++t) printf "%s%d", (t ? ", " : ""), int(rand() * 1792)
      printf "]"
    }
    print "]" }' "$@"
}

# same NAME RANKS TOML: threads and processes agree.
same() {
  local name=$1 ranks=$2
  printf '[[instance]]\n%s\n' "$3" >"$folder/$name.toml"
  local run=("$trireme" logits --model "$model" --tokens "$folder/short.json" --deployment "$folder/$name.toml"
    --chunk 48 --greedy 3 --check-collectives)
  "${run[@]}" --output "$folder/$name.threads" >"$folder/log" 2>&1 || complain "$name: threads: $(cat "$folder/log")"
  timeout 60 "${mpirun[@]}" -n "$ranks" "${run[@]}" --output "$folder/$name.processes" >"$folder/log" 2>&1 ||
    complain "$name: mpirun: $(cat "$folder/log")"
  if cmp "$folder/$name.threads" "$folder/$name.processes"; then
    echo "$name: $ranks processes wrote the file of $ranks threads, $(stat -c %s "$folder/$name.threads") bytes"
  else
    complain "$name: files differ"
  fi
}

# One of four ranks is killed in the middle of a long run.
killed() {
  printf '[[instance]]\npipeline = [4, 3, 3, 3]\n' >"$folder/long.toml"
  "${mpirun[@]}" -n 4 "$trireme" logits --model "$model" --tokens "$folder/long.json" \
    --deployment "$folder/long.toml" --chunk 16 --output "$folder/long.out" >"$folder/log" 2>&1 &
  local job=$! victim="" tries
  for ((tries = 0; tries < 200; ++tries)); do
    victim=$(pgrep -P "$job" -f -- "--tokens $folder/long.json" | sed -n 3p)
    [ -n "$victim" ] && break
    sleep 0.05
  done
  sleep 3 # until it computes
  kill -0 "$job" 2>/dev/null || complain "killed: the long run was over before a rank could be killed"
  local begin end status
  begin=$(date +%s%N)
  kill -KILL "$victim" || complain "killed: no rank to kill"
  wait "$job"
  status=$?
  end=$(date +%s%N)
  local milliseconds=$(((end - begin) / 1000000))
  local survivors
  survivors=$(grep -c "ending, because mpirun ended the job" "$folder/log")
  echo "killed: status $status after $milliseconds ms, $survivors survivors spoke"
  [ "$status" -ne 0 ] || complain "killed: the job ended with status 0"
  [ "$milliseconds" -lt 30000 ] || complain "killed: the job hung for $milliseconds ms"
  [ "$survivors" -eq 3 ] || complain "killed: $survivors of 3 survivors spoke: $(cat "$folder/log")"
  [ ! -e "$folder/long.out" ] || complain "killed: there is an output file"
}

ids 1 17 65 >"$folder/short.json"
ids 4000 4000 4000 4000 >"$folder/long.json"
same pp4 4 'pipeline = [4, 3, 3, 3]
[instance.eager_bank]'
same dp2-dcp2-ep4 4 'attention = { dp = 2, dcp = 2 }
experts = { ep = 4 }'
same shard 4 'attention = { dp = 4 }
weight_shard = 4
vocab = 4'
killed
exit $failed
