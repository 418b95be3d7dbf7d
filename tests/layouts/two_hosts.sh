#!/usr/bin/env bash
# two_hosts.sh TRIREME MODEL: two network namespaces with names of their own pose as hosts, joined by a pair of virtual
# network cards; mpirun starts two ranks in each, and they write the file that four threads write. Ends with 77 where
# this may not be done.
set -u
trireme=$1
model=$2
folder=$(mktemp -d)
hosts=("trireme-a-$$" "trireme-b-$$")
cards=("tra$(($$ % 100000))" "trb$(($$ % 100000))")
addresses=(10.213.77.1 10.213.77.2)

clean() {
  for host in "${hosts[@]}"; do ip netns del "$host" 2>/dev/null; done
  rm -rf "$folder"
}
trap clean EXIT

skip() {
  echo "SKIPPED: $1"
  exit 77
}

[ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
for tool in ip unshare mpirun; do command -v "$tool" >/dev/null || skip "there is no $tool here"; done
unshare --uts true 2>/dev/null || skip "host names of its own (unshare --uts) are not permitted here"
for host in "${hosts[@]}"; do ip netns add "$host" 2>/dev/null || skip "ip netns add is not permitted here"; done
ip link add "${cards[0]}" netns "${hosts[0]}" type veth peer name "${cards[1]}" netns "${hosts[1]}" 2>/dev/null ||
  skip "ip link add type veth is not permitted here"
for i in 0 1; do
  ip -n "${hosts[i]}" address add "${addresses[i]}/24" dev "${cards[i]}" || skip "no address for ${cards[i]}"
  ip -n "${hosts[i]}" link set "${cards[i]}" up || skip "${cards[i]} does not come up"
  ip -n "${hosts[i]}" link set lo up
done

# What mpirun calls in place of ssh: AGENT HOST COMMAND...
cat >"$folder/agent" <<'AGENT'
#!/usr/bin/env bash
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
AGENT
chmod +x "$folder/agent"
for i in 0 1; do echo "${addresses[i]} ${hosts[i]}"; done >"$folder/names"
for host in "${hosts[@]}"; do echo "$host slots=2"; done >"$folder/hosts"

printf '[[instance]]\nattention = { dp = 2, dcp = 2 }\nexperts = { ep = 4 }\nranks_per_host = 2\nvocab = 2\n' \
  >"$folder/layout.toml"
echo '[[1, 2, 3, 4, 5, 6, 7, 8, 9], [11], [21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37]]' \
  >"$folder/tokens.json"
run=("$trireme" logits --model "$model" --tokens "$folder/tokens.json" --deployment "$folder/layout.toml"
  --chunk 8 --greedy 2)
"${run[@]}" --output "$folder/threads" || exit 1

# mpirun itself runs on the first host. Names are resolved by a hosts file that only these processes see.
launch="mount --bind $folder/names /etc/hosts && hostname ${hosts[0]} && exec \"\$@\""
timeout 120 ip netns exec "${hosts[0]}" unshare --uts --mount sh -c "$launch" sh \
  mpirun --allow-run-as-root --hostfile "$folder/hosts" -n 4 --map-by slot --bind-to none \
  --mca plm rsh --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self --mca pml ob1 \
  --mca oob_tcp_if_include "${addresses[0]}/24" --mca btl_tcp_if_include "${addresses[0]}/24" \
  sh -c 'echo "rank $OMPI_COMM_WORLD_RANK on $(hostname)"; exec "$@"' sh \
  "${run[@]}" --output "$folder/processes" >"$folder/log" 2>&1
status=$?
cat "$folder/log"
[ "$status" -eq 0 ] || exit 1
for rank in 0 1 2 3; do
  grep -q "rank $rank on ${hosts[rank / 2]}" "$folder/log" || {
    echo "FAILED: rank $rank was not started on ${hosts[rank / 2]}"
    exit 1
  }
done
sent=$(ip -n "${hosts[0]}" -s link show "${cards[0]}" | awk '/TX:/ { getline; print $1 }')
echo "the first host sent $sent bytes to the second"
[ "$sent" -gt 100000 ] || {
  echo "FAILED: so few bytes between the hosts cannot be the ranks'"
  exit 1
}
cmp "$folder/threads" "$folder/processes" || exit 1
echo "four ranks on two hosts wrote the file of four threads"
