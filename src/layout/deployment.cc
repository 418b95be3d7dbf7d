#include "layout/deployment.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "layout/built_in.h"
#include "layout/toml_table.h"

namespace trireme::layout {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;

const std::vector<TableKind>& table_kinds() {
  static const std::vector<TableKind> kinds = {
      {"", {"model", "instance"}},
      {"[[instance]]",
       {"name", "role", "pipeline", "attention", "experts", "weight_shard", "vocab", "ranks_per_host", "row_bound",
        "prefill", "eager_bank", "speculation"}},
      {"attention", {"dp", "tp", "dcp"}},
      {"experts", {"ep", "max_dispatch_tokens"}},
      {"weight_shard", {"ranks", "move_smaller"}},
      {"prefill", {"chunk_tokens", "dynamic_chunking", "async_depth", "warmup"}},
      {"eager_bank", {"stages", "prefetch"}},
  };
  return kinds;
}

class Parser {
 public:
  explicit Parser(std::string where) : where_(std::move(where)) {}

  Deployment run(std::string_view text) {
    const toml::table root = parse(text);
    const TomlTable top = open(root, "");
    Deployment deployment;
    deployment.name = std::filesystem::path(where_).stem().string();
    if (const auto model = top.text("model")) {
      deployment.model = std::filesystem::path(where_).parent_path() / *model;
    }
    const toml::node* instances = top.find("instance");
    if (instances == nullptr) top.refuse("instance", "no [[instance]]; one at least would be right");
    if (!instances->is_array_of_tables()) {
      top.refuse("instance", "instance is no array of tables; [[instance]] would be right");
    }
    for (const toml::node& node : *instances->as_array()) {
      const TomlTable table = open(*node.as_table(), "[[instance]]");
      Instance instance = read_instance(table);
      for (const Instance& other : deployment.instances) {
        if (other.name == instance.name) {
          table.refuse("name", fmt::format("name = \"{0}\" is taken; \"{0}-{1}\" would be right", instance.name,
                                           deployment.instances.size()));
        }
      }
      deployment.instances.push_back(std::move(instance));
    }
    return deployment;
  }

 private:
  toml::table parse(std::string_view text) const {
    try {
      return toml::parse(text, where_);
    } catch (const toml::parse_error& error) {
      throw BadInput(
          fmt::format("{}:{}: not TOML: {}", where_, error.source().begin.line, one_line(error.description())));
    }
  }

  TomlTable open(const toml::table& table, std::string_view path) const {
    const auto& kinds = table_kinds();
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const TableKind& k) { return k.path == path; });
    return {table, *kind, kinds, where_};
  }

  // The table under `key`, which must hold something.
  std::optional<TomlTable> section(const TomlTable& parent, std::string_view key) const {
    const toml::table* table = parent.table(key);
    if (table == nullptr) return std::nullopt;
    if (table->empty()) {
      parent.refuse(key, fmt::format("{} is empty and has no effect; leaving it out would be right", key));
    }
    return open(*table, key);
  }

  Instance read_instance(const TomlTable& table) const {
    if (table.has("speculation")) table.refuse("speculation", "speculation is not supported yet in a deployment file");
    Instance instance;
    instance.role = read_role(table);
    instance.name = table.text("name").value_or(std::string(role_name(instance.role)));
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
             c == '.';
    };
    if (!std::all_of(instance.name.begin(), instance.name.end(), is_plain)) {
      table.refuse("name", fmt::format("name = \"{}\" has other characters than letters, digits, '-', '_' and '.'; "
                                       "\"p0\" would be right",
                                       one_line(instance.name)));
    }
    read_pipeline(table, instance);
    read_attention(table, instance);
    read_experts(table, instance);
    read_weight_shard(table, instance);
    instance.vocab = table.integer("vocab", 1).value_or(instance.vocab);
    instance.ranks_per_host = table.integer("ranks_per_host", 1).value_or(instance.ranks_per_host);
    instance.row_bound = table.integer("row_bound", 1);
    if (instance.row_bound && instance.dp == 1) {
      table.refuse("row_bound",
                   fmt::format("row_bound = {} has no effect without attention.dp of 2 or more; leaving it "
                               "out would be right",
                               *instance.row_bound));
    }
    read_prefill(table, instance);
    read_eager_bank(table, instance);
    return instance;
  }

  Role read_role(const TomlTable& table) const {
    const std::string role = table.text("role").value_or("unified");
    for (const Role known : {Role::unified, Role::prefill, Role::decode}) {
      if (role == role_name(known)) return known;
    }
    table.refuse("role", fmt::format("role = \"{}\" is unknown; \"unified\", \"prefill\" or \"decode\" would be right",
                                     one_line(role)));
  }

  void read_pipeline(const TomlTable& table, Instance& instance) const {
    const toml::node* node = table.find("pipeline");
    if (node == nullptr) return;
    if (node->is_integer()) {
      instance.pipeline_stages = *table.integer("pipeline", 1);
    } else if (node->is_array()) {
      instance.pipeline = *table.integers("pipeline", 1);
    } else {
      table.refuse("pipeline",
                   "pipeline holds neither layers a stage nor a number of stages; [4, 3] or 2 would be right");
    }
  }

  void read_attention(const TomlTable& table, Instance& instance) const {
    const auto attention = section(table, "attention");
    if (!attention) return;
    instance.dp = attention->integer("dp", 1).value_or(1);
    instance.dcp = attention->integer("dcp", 1).value_or(1);
    instance.tp = attention->integer("tp", 1).value_or(instance.dcp);
  }

  void read_experts(const TomlTable& table, Instance& instance) const {
    const auto experts = section(table, "experts");
    if (!experts) return;
    instance.ep = experts->integer("ep", 1).value_or(0);
    instance.max_dispatch_tokens = experts->integer("max_dispatch_tokens", 1);
    if (instance.max_dispatch_tokens && (instance.ep == 1 || (instance.ep == 0 && instance.ranks_per_stage() == 1))) {
      experts->refuse("max_dispatch_tokens",
                      fmt::format("experts.max_dispatch_tokens = {} has no effect with experts.ep = 1; leaving it out "
                                  "would be right",
                                  *instance.max_dispatch_tokens));
    }
  }

  void read_weight_shard(const TomlTable& table, Instance& instance) const {
    const toml::node* node = table.find("weight_shard");
    if (node == nullptr) return;
    if (node->is_integer()) {
      instance.weight_shard = *table.integer("weight_shard", 1);
      return;
    }
    if (!node->is_table()) {
      table.refuse("weight_shard",
                   "weight_shard holds neither a number of ranks nor a table; 8 or { ranks = 8 } would be right");
    }
    const auto shard = section(table, "weight_shard");
    instance.weight_shard = shard->integer("ranks", 1).value_or(1);
    instance.move_smaller = shard->flag("move_smaller").value_or(true);
    if (instance.weight_shard == 1 && shard->has("move_smaller")) {
      shard->refuse("move_smaller",
                    "weight_shard.move_smaller has no effect without weight_shard.ranks of 2 or more; "
                    "weight_shard = { ranks = 2, move_smaller = true } would be right");
    }
  }

  void read_prefill(const TomlTable& table, Instance& instance) const {
    const auto prefill = section(table, "prefill");
    if (!prefill) return;
    instance.chunk_tokens = prefill->integer("chunk_tokens", 1).value_or(instance.chunk_tokens);
    instance.dynamic_chunking = prefill->flag("dynamic_chunking").value_or(false);
    instance.async_depth = prefill->integer("async_depth", 0).value_or(0);
    instance.warmup = prefill->integers("warmup", 1).value_or(std::vector<int64_t>{});
  }

  // The table alone turns it on, even an empty one.
  void read_eager_bank(const TomlTable& table, Instance& instance) const {
    const toml::table* found = table.table("eager_bank");
    if (found == nullptr) return;
    const TomlTable bank = open(*found, "eager_bank");
    instance.eager_bank.enabled = true;
    instance.eager_bank.stages = bank.integers("stages", 0).value_or(std::vector<int64_t>{});
    instance.eager_bank.prefetch = bank.flag("prefetch").value_or(true);
  }

  std::string where_;
};

}  // namespace

std::vector<std::string_view> built_in_deployments() {
  std::vector<std::string_view> names;
  for (const BuiltIn& built_in : built_ins()) names.push_back(built_in.name);
  return names;
}

Deployment parse_deployment(std::string_view toml, const std::string& where) { return Parser(where).run(toml); }

Deployment read_deployment(const std::string& file_or_name) {
  for (const BuiltIn& built_in : built_ins()) {
    if (built_in.name == file_or_name) return parse_deployment(built_in.toml, file_or_name);
  }
  std::error_code ignored;
  if (!std::filesystem::exists(file_or_name, ignored)) {
    throw BadInput(fmt::format("no deployment file {}; a file, or one of {}, would be right", one_line(file_or_name),
                               fmt::join(built_in_deployments(), ", ")));
  }
  return parse_deployment(read_text_file(file_or_name, kMaxFileBytes), file_or_name);
}

}  // namespace trireme::layout
