// The whole command line in a child process: exit status, what is said, what is written.
#include "cli/command_line.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNano = TRIREME_SOURCE_DIR "/models/k3-nano";

struct Outcome {
  int status = -1;  // negative: ended by a signal
  std::string said;
  std::string written;
};

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class CommandLineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "folder");
    fs::current_path(folder_);
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(folder_);
  }

  // `output` is where standard output goes; nullptr: nowhere, it is closed. A command that hangs is killed after 60 s.
  static Outcome run(std::vector<std::string> arguments, const char* output = "out") {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      close(STDIN_FILENO);
      close(STDOUT_FILENO);
      close(STDERR_FILENO);
      (void)open("/dev/null", O_RDONLY);
      if (output != nullptr) (void)open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
      (void)dup2(open("err", O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
      if (output == nullptr) close(STDOUT_FILENO);
      arguments.insert(arguments.begin(), "trireme");
      std::vector<const char*> argv;
      for (const std::string& argument : arguments) argv.push_back(argument.c_str());
      argv.push_back(nullptr);
      _exit(run_command_line(static_cast<int>(arguments.size()), argv.data()));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), slurp("err"), slurp("out")};
  }
  // Status 2 and one line that has `named`.
  static void expect_refused(const std::vector<std::string>& arguments, const std::string& named) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.said;
    EXPECT_NE(outcome.said.find(named), std::string::npos) << named << " is not in: " << outcome.said;
    EXPECT_TRUE(outcome.said.starts_with("trireme: ")) << outcome.said;
    EXPECT_EQ(outcome.said.find('\n'), outcome.said.size() - 1) << outcome.said;
  }
  static std::vector<std::string> eval(const std::string& line) {
    std::ofstream("questions.jsonl") << line << "\n";
    return {"eval", "--model", kNano, "--data", "questions.jsonl"};
  }

  fs::path folder_ = fs::temp_directory_path() / ("trireme-command-line-" + std::to_string(getpid()));
};

TEST_F(CommandLineTest, UnknownArgumentsAreNamedThoughOthersAreMissing) {
  expect_refused({}, "subcommand");
  expect_refused({"foo"}, "foo");
  for (const char* command : {"serve", "generate", "logits", "eval", "bench", "inspect", "convert", "doctor"}) {
    expect_refused({command, "--nope"}, "--nope");
  }
}

// What a shell leaves of an unset variable must not mean the default: another model, no key, every address.
TEST_F(CommandLineTest, EmptyValuesAreRefused) {
  for (const char* flag : {"--model", "--draft", "--precision"})
    expect_refused({"generate", "--prompt", "hi", flag, ""}, flag);
  expect_refused({"generate", "--prompt", "hi", "--model", kNano, "--isa", ""}, "instruction set \"\"");
  for (const char* flag : {"--host", "--api-key", "--served-model-name"}) {
    expect_refused({"serve", "--port", "0", "--model", kNano, flag, ""}, flag);
  }
  expect_refused({"inspect", ""}, "dir");
  expect_refused({"logits", "--tokens", "t", "--output", ""}, "--output");
}

TEST_F(CommandLineTest, NumbersOutOfRangeAreRefused) {
  const std::vector<std::string> generate = {"generate", "--model", kNano, "--prompt", "hi", "--max-tokens", "1"};
  const std::pair<const char*, const char*> flags[] = {{"--seed", "-1"},       {"--seed", "18446744073709551616"},
                                                       {"--seed", "1.5"},      {"--threads", "-1"},
                                                       {"--threads", "1025"},  {"--gamma", "0"},
                                                       {"--precision", "foo"}, {"--max-tokens", "0"}};
  for (const auto& [flag, value] : flags) {
    std::vector<std::string> arguments = generate;
    if (flag == std::string("--max-tokens")) arguments.resize(5);
    arguments.insert(arguments.end(), {flag, value});
    expect_refused(arguments, flag);
    EXPECT_LT(slurp("err").size(), 200U) << slurp("err");
  }
  expect_refused({"serve", "--port", "0", "--max-tokens", "9223372036854775807"}, "--max-tokens");
}

TEST_F(CommandLineTest, FoldersAndDevicesInTheirPlaceAreNamed) {
  expect_refused({"generate", "--model", kNano, "--chat", "folder"}, "--chat folder: it is a folder");
  expect_refused({"logits", "--model", kNano, "--tokens", "folder", "--output", "o"}, "folder: is a folder");
  expect_refused({"eval", "--model", kNano, "--data", "folder"}, "folder: cannot be read");
  std::ofstream("ids.json") << "[[1]]";
  ASSERT_EQ(mkfifo("pipe", 0600), 0);
  expect_refused({"logits", "--model", kNano, "--tokens", "ids.json", "--output", "pipe"}, "--output pipe");
  EXPECT_TRUE(fs::is_fifo("pipe"));
  std::vector<std::string> ids = eval(R"({"prompt_ids":[1],"answer":"x"})");
  ids.insert(ids.end(), {"--ids", "folder"});
  expect_refused(ids, "--ids folder");
}

TEST_F(CommandLineTest, DeepJsonIsRefused) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  std::ofstream("deep.json") << "[[" << deep << "]]";
  expect_refused({"logits", "--model", kNano, "--tokens", "deep.json", "--output", "o"}, "deep.json");
  expect_refused({"generate", "--model", kNano, "--chat", "deep.json"}, "deep.json");
  expect_refused(eval(R"({"prompt_ids":[1],"answer":[{"name":"f","arguments":)" + deep + "}]}"), "nested");
}

TEST_F(CommandLineTest, MalformedQuestionsAreNamed) {
  const std::pair<const char*, const char*> lines[] = {
      {"x", "not valid JSON"},
      {"[]", "must be an object"},
      {R"({"prompt_ids":[1]})", "answer"},
      {R"({"answer":"x"})", "messages"},
      {R"({"prompt_ids":[1.5],"answer":"x"})", "prompt_ids"},
      {R"({"prompt_ids":[4294967297],"answer":"x"})", "prompt_ids"},
      {R"({"prompt_ids":[true],"answer":"x"})", "prompt_ids"},
      {R"({"prompt_ids":[2048],"answer":"x"})", "prompt_ids"},
      {R"({"prompt_ids":[-1],"answer":"x"})", "prompt_ids"},
      {R"({"prompt_ids":[],"answer":"x"})", "prompt_ids"},
      {R"({"prompt_ids":[1],"answer":[{"name":"f"}]})", "answer"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":5,"answer":"x"})", "tools"},
      {R"({"messages":[{"role":"user","content":"a"}],"opts":{"response_format":5},"answer":"x"})", "response_format"},
      {R"({"prompt_ids":[1],"opts":{"response_format":5},"answer":"x"})", "response_format"},
      {R"({"prompt_ids":[1],"opts":{"tool_choice":5},"answer":"x"})", "tool_choice"},
      {R"({"prompt_ids":[1],"opts":{"temperature":0},"answer":"x"})", "opts.temperature: unknown"},
      {R"({"prompt_ids":[1],"opts":{"response_schema":{}},"answer":"x"})", "opts.response_schema"},
      {R"({"prompt_ids":[1],"messages":[{"role":"user","content":"a"}],"answer":"x"})", "prompt_ids: they are not"},
      {R"({"prompt_ids":[1],"messages":[{"role":"user","content":"a"}],"opts":{"response_format":"json_schema","response_schema":{}},"answer":"x"})",
       "prompt_ids: they are not"},
      {R"({"messages":[{"role":"user","content":"a"}],"opts":{"response_format":"yaml"},"answer":"x"})",
       "response_format.type"},
      {R"({"messages":[{"role":"user","content":"a"}],"opts":5,"answer":"x"})", "opts"}};
  for (const auto& [line, named] : lines) {
    expect_refused(eval(line), named);
    EXPECT_NE(slurp("err").find("questions.jsonl:1: "), std::string::npos) << slurp("err");
  }
}

// The engine's thread still writes into the first answer when the second question is refused.
TEST_F(CommandLineTest, AQuestionThatCannotRunEndsTheOthers) {
  std::string long_one = "1";
  for (int i = 0; i < 4096; ++i) long_one += ",1";
  const Outcome outcome = run(eval(R"({"prompt_ids":[1,2,3],"answer":"x"})"
                                   "\n{\"id\":\"q2\",\"prompt_ids\":[" +
                                   long_one + "],\"answer\":\"x\"}"));
  EXPECT_EQ(outcome.status, 2) << outcome.said;
  EXPECT_NE(outcome.said.find("trireme: question q2: prompt has 4097 tokens"), std::string::npos) << outcome.said;
}

// A folder with all of k3-nano but its weights: whatever is said about it was said before the model was loaded.
void make_weightless() {
  fs::create_directories("weightless");
  for (const auto& file : fs::directory_iterator(kNano)) {
    if (file.path().extension() != ".safetensors") fs::copy_file(file.path(), "weightless" / file.path().filename());
  }
}

TEST_F(CommandLineTest, WhatCanBeKnownIsToldBeforeTheModelIsLoaded) {
  make_weightless();
  const std::vector<std::string> generate = {"generate", "--model", "weightless", "--prompt", "hi"};
  const auto with = [](std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  expect_refused(generate, "safetensors");
  expect_refused(with(generate, {"--max-tokens", "100000"}), "--max-tokens 100000");
  expect_refused(with(generate, {"--draft", TRIREME_SOURCE_DIR "/models/k3-nano-dspark", "--gamma", "8"}),
                 "gamma is 8");
  std::ofstream("chat.json") << R"([{"role": "emperor", "content": "x"}])";
  expect_refused({"generate", "--model", "weightless", "--chat", "chat.json"}, "messages[0]");
  std::ofstream("weightless/generation_config.json") << R"({"temperature": "hot"})";
  expect_refused(generate, "generation_config.json: temperature");
  expect_refused({"serve", "--port", "0", "--model", "weightless"}, "generation_config.json: temperature");
}

TEST_F(CommandLineTest, WhatTheMemoryCannotHoldIsRefused) {
  const Outcome outcome = run({"serve", "--port", "0", "--model", kNano, "--max-tokens", "100000000000"});
  EXPECT_EQ(outcome.status, 1) << outcome.said;
  EXPECT_NE(outcome.said.find("lower max_tokens (--max-tokens"), std::string::npos) << outcome.said;
}

TEST_F(CommandLineTest, AFolderThatIsNotThereIsSaidToBe) {
  const std::vector<std::string> commands[] = {{"serve", "--port", "0"},
                                               {"generate", "--prompt", "hi"},
                                               {"eval", "--data", "d"},
                                               {"logits", "--tokens", "t", "--output", "o"},
                                               {"bench", "latency"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--model", "nowhere"});
    expect_refused(command, "--model nowhere: there is no such folder");
  }
}

TEST_F(CommandLineTest, AnEmptyKeyInTheEnvironmentIsNoKey) {
  setenv("TRIREME_API_KEY", "", 1);
  expect_refused({"serve", "--port", "0", "--model", kNano}, "TRIREME_API_KEY");
  unsetenv("TRIREME_API_KEY");
}

TEST_F(CommandLineTest, InputsAreNotOverwritten) {
  make_weightless();  // nothing is loaded before the refusal
  std::ofstream("ids.json") << "[[1]]";
  fs::create_symlink("ids.json", "link.json");
  fs::create_hard_link("weightless/config.json", "config-too.json");
  const auto logits = [](const std::string& output) {
    return std::vector<std::string>{"logits", "--model", "weightless", "--tokens", "ids.json", "--output", output};
  };
  for (const char* output : {"ids.json", "./folder/../ids.json", "link.json"}) {
    expect_refused(logits(output), "--output " + std::string(output) + ": it is the same file as ids.json");
  }
  for (const char* output : {"weightless/config.json", "config-too.json"}) {
    expect_refused(logits(output),
                   "--output " + std::string(output) + ": it is the same file as weightless/config.json");
  }
  EXPECT_EQ(slurp("ids.json"), "[[1]]");
  const std::string question = R"({"prompt_ids":[1],"answer":"x"})";
  std::vector<std::string> ids = eval(question);
  ids.insert(ids.end(), {"--ids", "./questions.jsonl"});
  expect_refused(ids, "--ids ./questions.jsonl: it is the same file as questions.jsonl");
  EXPECT_EQ(slurp("questions.jsonl"), question + "\n");
}

TEST_F(CommandLineTest, BatchSizesAreAList) {
  for (const char* list : {"", "1,,2", "1,2,", ",1", "0", "65537", "1,x", "1 2", "-1", "1.5"}) {
    expect_refused({"bench", "latency", "--model", kNano, "--batch", list}, "--batch");
  }
  const Outcome good =
      run({"bench", "latency", "--model", kNano, "--prompt", "4", "--generate", "2", "--batch", "2,1", "--json"});
  EXPECT_EQ(good.status, 0) << good.said;
  EXPECT_LT(good.written.find("\"batch\": 2"), good.written.find("\"batch\": 1"));
}

TEST_F(CommandLineTest, ABenchThatDoesNotFitIsRefused) {
  const Outcome outcome = run({"bench", "latency", "--model", kNano, "--batch", "65536", "--prompt", "4000"});
  EXPECT_EQ(outcome.status, 1) << outcome.said;
  EXPECT_NE(outcome.said.find("lower --batch"), std::string::npos) << outcome.said;
}

TEST_F(CommandLineTest, ChatFilesAreJsonByThemselves) {
  make_weightless();
  const auto refused = [](const std::string& text, const std::string& named) {
    std::ofstream("chat.json", std::ios::trunc) << text;
    expect_refused({"generate", "--model", "weightless", "--chat", "chat.json"}, named);
  };
  const std::string messages = R"([{"role": "user", "content": "hi"}])";
  refused(messages, "safetensors");  // it is good, and the next thing to be missed
  refused(R"({"messages": )" + messages + "}", "safetensors");
  refused(messages + R"(, "tool_choice": "none")", "--chat chat.json: body: not valid JSON: parse error at line 1");
  refused("\n" + messages + "]", "at line 2, column");
  refused("\xEF\xBB\xBF" + messages, "--chat chat.json: begins with a byte order mark");
  refused("3", "--chat chat.json: must be a list of messages or an object with messages, not an integer");
}

TEST_F(CommandLineTest, InspectShowsWhatConfigLeavesOut) {
  fs::create_directories("silent");
  for (const auto& file : fs::directory_iterator(kNano))
    fs::create_symlink(file.path(), "silent" / file.path().filename());
  std::string config = slurp("silent/config.json");
  for (const std::string key : {"\"gate_lower_bound\"", "\"routed_scaling_factor\""}) {
    ASSERT_NE(config.find(key), std::string::npos);
    config.replace(config.find(key), 1, "\"not_");
  }
  fs::remove("silent/config.json");
  std::ofstream("silent/config.json") << config;
  const Outcome text = run({"inspect", "silent"});
  EXPECT_NE(text.written.find("gate_lower_bound: none, the softplus gate"), std::string::npos) << text.said;
  EXPECT_NE(text.written.find("routed_scaling_factor: 1"), std::string::npos) << text.written;
  const Outcome json = run({"inspect", "silent", "--json"});
  EXPECT_NE(json.written.find("\"routed_scaling_factor\": \"1\""), std::string::npos) << json.written;
  EXPECT_EQ(run({"inspect", kNano}).written.find("config.json does not say"), std::string::npos);
}

TEST_F(CommandLineTest, NoThreadsAreAllThreads) {
  expect_refused({"convert", "--from", "nowhere", "--to", "made", "--fp8", "attn", "--threads", "0"}, "nowhere");
}

// Whether the process blocks SIGTERM, which `serve` does shortly before it loads.
bool blocks_term(pid_t process) {
  std::ifstream in("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("SigBlk:")) return ((std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1)) & 1) != 0;
  }
  return false;
}

// Pools of half a gigabyte, all of which is zeroed, make the loading long enough to be met.
TEST_F(CommandLineTest, ASignalEndsTheServerWhileItLoads) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    (void)dup2(open("out", O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
    const std::vector<const char*> argv = {"trireme", "serve",        "--port", "0",    "--model",
                                           kNano,     "--max-tokens", "60000",  nullptr};
    _exit(run_command_line(static_cast<int>(argv.size()) - 1, argv.data()));
  }
  for (int i = 0; i < 30'000 && !blocks_term(child); ++i) usleep(1000);
  kill(child, SIGTERM);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status << "\n" << slurp("out");
}

TEST_F(CommandLineTest, LostOutputIsAFailure) {
  const std::vector<std::string> commands[] = {
      {"--help"},           {"--version"},      {"doctor"},
      {"doctor", "--json"}, {"inspect", kNano}, {"generate", "--model", kNano, "--prompt", "hi", "--max-tokens", "2"}};
  for (const auto& command : commands) {
    const Outcome full = run(command, "/dev/full");
    EXPECT_EQ(full.status, 1) << command[0] << ": " << full.said;
    EXPECT_EQ(full.said, "trireme: standard output cannot be written\n") << command[0];
    const Outcome closed = run(command, nullptr);
    EXPECT_EQ(closed.status, 1) << command[0] << ": " << closed.said;
    const Outcome good = run(command);
    EXPECT_EQ(good.status, 0) << command[0] << ": " << good.said;
    EXPECT_FALSE(good.written.empty()) << command[0];
  }
}

}  // namespace
}  // namespace trireme::cli
