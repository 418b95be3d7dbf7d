// Every malformed kind of chat request is refused with a message that names the place.
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/chat.h"
#include "text_support.h"

namespace trireme::text {
namespace {

using namespace test;
using Json = nlohmann::ordered_json;

struct Refusal {
  std::string name;
  std::string request;  // JSON of the ChatRequest; "messages" may be given alone as a list
  std::string says;
};

std::string with_user(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}";
}
std::string assistant_call(const std::string& call) { return R"([{"role":"assistant","tool_calls":[)" + call + "]}]"; }
std::string deep(const std::string& inside) {
  std::string out = inside;
  for (int i = 0; i < 120; ++i) out.insert(out.begin(), '['), out += ']';
  return out;
}

std::vector<Refusal> refusals() {
  const std::string f = R"({"type":"function","function":{"name":"f"}})";
  return {
      {"messages_empty", "[]", "messages: must not be empty"},
      {"messages_object", R"({"messages":{}})", "messages: must be a list, not object"},
      {"messages_null", R"({"messages":null})", "messages: must be a list, not null"},
      {"message_string", R"(["hi"])", "messages[0]: must be an object, not string"},
      {"message_null", R"([null])", "messages[0]: must be an object, not null"},
      {"role_missing", R"([{"content":"x"}])", "messages[0].role: missing"},
      {"role_number", R"([{"role":1,"content":"x"}])", "messages[0].role: must be a string, not number"},
      {"role_empty", R"([{"role":"","content":"x"}])", "messages[0].role: must not be empty"},
      {"role_unknown", R"([{"role":"user","content":"x"},{"role":"developer","content":"x"}])",
       "messages[1].role: unknown role \"developer\""},
      {"user_content_missing", R"([{"role":"user"}])", "messages[0].content: missing"},
      {"user_content_null", R"([{"role":"user","content":null}])", "messages[0].content: missing"},
      {"system_content_missing", R"([{"role":"system"}])", "messages[0].content: missing"},
      {"tool_content_missing", R"([{"role":"tool","tool_call_id":"a","name":"f"}])", "messages[0].content: missing"},
      {"content_number", R"([{"role":"user","content":5}])",
       "messages[0].content: must be a string or a list of text parts, not number"},
      {"content_object", R"([{"role":"user","content":{}}])", "messages[0].content: must be a string or a list"},
      {"assistant_content_bool", R"([{"role":"assistant","content":true}])",
       "messages[0].content: must be a string or a list"},
      {"part_string", R"([{"role":"user","content":["x"]}])", "messages[0].content[0]: must be an object, not string"},
      {"part_type_missing", R"([{"role":"user","content":[{"text":"x"}]}])", "messages[0].content[0].type: missing"},
      {"part_type_unknown", R"([{"role":"user","content":[{"type":"file"}]}])",
       "messages[0].content[0].type: unknown part type \"file\""},
      {"part_text_missing", R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text: missing"},
      {"part_text_number", R"([{"role":"user","content":[{"type":"text","text":1}]}])",
       "messages[0].content[0].text: must be a string"},
      {"image_part",
       R"([{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"u"}}]}])",
       "messages[0].content[1].type: \"image_url\" is not supported; this engine takes text only"},
      {"video_part", R"([{"role":"user","content":[{"type":"video_url"}]}])", "\"video_url\" is not supported"},
      {"audio_part", R"([{"role":"user","content":[{"type":"input_audio"}]}])", "\"input_audio\" is not supported"},
      {"user_name_number", R"([{"role":"user","content":"x","name":3}])",
       "messages[0].name: must be a string, not number"},
      {"reasoning_list", R"([{"role":"assistant","reasoning_content":[]}])",
       "messages[0].reasoning_content: must be a string, not array"},
      {"reasoning_number", R"([{"role":"assistant","reasoning":1}])",
       "messages[0].reasoning: must be a string, not number"},
      {"calls_object", R"([{"role":"assistant","tool_calls":{}}])",
       "messages[0].tool_calls: must be a list, not object"},
      {"call_string", assistant_call("\"f\""), "messages[0].tool_calls[0]: must be an object, not string"},
      {"call_id_number", assistant_call(R"({"id":1,"function":{"name":"f"}})"),
       "messages[0].tool_calls[0].id: must be a string"},
      {"call_type", assistant_call(R"({"type":"web","function":{"name":"f"}})"),
       "messages[0].tool_calls[0].type: must be \"function\""},
      {"call_function_missing", assistant_call("{}"), "messages[0].tool_calls[0].function: missing"},
      {"call_function_string", assistant_call(R"({"function":"f"})"),
       "messages[0].tool_calls[0].function: must be an object"},
      {"call_name_missing", assistant_call(R"({"function":{"arguments":"{}"}})"),
       "messages[0].tool_calls[0].function.name: missing"},
      {"call_name_empty", assistant_call(R"({"function":{"name":""}})"),
       "messages[0].tool_calls[0].function.name: must not be empty"},
      {"call_arguments_list", assistant_call(R"({"function":{"name":"f","arguments":[]}})"),
       "messages[0].tool_calls[0].function.arguments: must be a string or an object, not array"},
      {"call_arguments_number", assistant_call(R"({"function":{"name":"f","arguments":1}})"),
       "function.arguments: must be a string or an object"},
      {"call_arguments_deep", assistant_call(R"({"function":{"name":"f","arguments":{"a":)" + deep(deep("1")) + "}}}"),
       "messages[0].tool_calls[0].function.arguments: nested more than 128 deep"},
      {"tool_id_missing", R"([{"role":"tool","content":"x","name":"f"}])", "messages[0].tool_call_id: missing"},
      {"tool_id_number", R"([{"role":"tool","content":"x","tool_call_id":1}])",
       "messages[0].tool_call_id: must be a string"},
      {"tool_id_empty", R"([{"role":"tool","content":"x","tool_call_id":""}])",
       "messages[0].tool_call_id: must not be empty"},
      {"tool_nameless", R"([{"role":"tool","content":"x","tool_call_id":"a"}])",
       "messages[0].tool_call_id: matches no call"},
      {"tool_beyond_calls",
       R"([{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]},{"role":"tool","content":"x","tool_call_id":"a"},{"role":"user","content":"u"},{"role":"tool","content":"x","tool_call_id":"b"}])",
       "messages[3].tool_call_id: matches no call"},
      {"tool_name_list", R"([{"role":"tool","content":"x","tool_call_id":"a","tool":[]}])",
       "messages[0].tool: must be a string"},
      {"user_tools", R"([{"role":"user","content":"x","tools":[)" + f + "]}]",
       "messages[0].tools: only a system message may declare tools"},
      {"system_tools_and_content", R"([{"role":"system","content":"x","tools":[)" + f + "]}]",
       "messages[0].content: must be empty"},
      {"system_tools_object", R"([{"role":"system","tools":{"a":1}}])",
       "messages[0].tools: must be a list, not object"},
      {"system_tool_without_name", R"([{"role":"system","tools":[{"type":"function","function":{}}]}])",
       "messages[0].tools[0].function.name: missing"},
      {"same_function_twice", R"({"messages":[{"role":"user","content":"x"}],"tools":[)" + f + "," + f + "]}",
       "tools[1].function.name: a second function called \"f\""},
      {"dynamic_function_twice", R"({"tools":[)" + f + R"(],"messages":[{"role":"system","tools":[)" + f + "]}]}",
       "messages[0].tools[0].function.name: a second function called \"f\""},
      {"tools_object", with_user(R"("tools":{"a":1})"), "tools: must be a list, not object"},
      {"tool_string", with_user(R"("tools":["f"])"), "tools[0]: must be an object, not string"},
      {"tool_type_missing", with_user(R"("tools":[{"function":{"name":"f"}}])"), "tools[0].type: missing"},
      {"tool_type_unknown", with_user(R"("tools":[{"type":"builtin_function","function":{"name":"f"}}])"),
       "tools[0].type: unknown tool type"},
      {"tool_function_missing", with_user(R"("tools":[{"type":"function"}])"), "tools[0].function: missing"},
      {"tool_name_number", with_user(R"("tools":[{"type":"function","function":{"name":1}}])"),
       "tools[0].function.name: must be a string"},
      {"tool_description_number", with_user(R"("tools":[{"type":"function","function":{"name":"f","description":1}}])"),
       "tools[0].function.description: must be a string"},
      {"tool_parameters_list", with_user(R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])"),
       "tools[0].function.parameters: must be an object"},
      {"tool_deep",
       with_user(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"a":)" + deep(deep("1")) + "}}}]"),
       "tools[0]: nested more than 128 deep"},
      {"choice_unknown", with_user(R"("tool_choice":"any")"), "tool_choice: must be auto, none or required"},
      {"choice_required_without_tools", with_user(R"("tool_choice":"required")"),
       "tool_choice: \"required\" needs at least one tool"},
      {"effort_unknown", with_user(R"("thinking_effort":"extreme")"),
       "thinking_effort: must be low, medium, high or max"},
      {"format_string", with_user(R"("response_format":"json")"), "response_format: must be an object, not string"},
      {"format_type_missing", with_user(R"("response_format":{})"), "response_format.type: missing"},
      {"format_type_unknown", with_user(R"("response_format":{"type":"xml"})"),
       "response_format.type: must be text, json_object or json_schema"},
      {"schema_missing", with_user(R"("response_format":{"type":"json_schema"})"),
       "response_format.json_schema: missing"},
      {"schema_string", with_user(R"("response_format":{"type":"json_schema","json_schema":"x"})"),
       "response_format.json_schema: must be an object"},
      {"schema_name_missing", with_user(R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})"),
       "response_format.json_schema.name: missing"},
      {"schema_body_missing", with_user(R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})"),
       "response_format.json_schema.schema: missing"},
      {"schema_body_list",
       with_user(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":[]}})"),
       "response_format.json_schema.schema: must be an object"},
      {"schema_deep",
       with_user(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"a":)" +
                 deep(deep("1")) + "}}}"),
       "response_format.json_schema.schema: nested more than 128 deep"},
  };
}

class ChatRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ChatRefusal, NamesThePlace) {
  static const Tokenizer tokenizer = byte_tokenizer();
  const Json json = Json::parse(GetParam().request);
  const ChatRequest request = chat_request(json.is_array() ? Json{{"messages", json}} : json);
  try {
    encode_chat(tokenizer, request);
    FAIL() << "accepted";
  } catch (const BadInput& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(GetParam().says) ||
                std::string(error.what()).find(GetParam().says) != std::string::npos)
        << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ChatRefusal, testing::ValuesIn(refusals()),
                         [](const auto& kind) { return kind.param.name; });

// Text that no JSON parser hands out, but that a caller can build.
TEST(ChatRefusals, InvalidUtf8IsNamedWhereverItStands) {
  const Tokenizer tokenizer = byte_tokenizer();
  const std::string bad = "a\xFF";
  const auto message = [&](const ChatRequest& request) -> std::string {
    try {
      encode_chat(tokenizer, request);
    } catch (const BadInput& error) {
      return error.what();
    }
    return "accepted";
  };
  ChatRequest request;
  request.messages = Json::array({{{"role", "user"}, {"content", bad}}});
  EXPECT_EQ(message(request), "messages[0].content: not valid UTF-8 at byte 1");
  request.messages = Json::array({{{"role", "user"}, {"content", "x"}, {"name", bad}}});
  EXPECT_EQ(message(request), "messages[0].name: not valid UTF-8 at byte 1");
  request.messages = Json::array({{{"role", "assistant"}, {"reasoning_content", bad}}});
  EXPECT_EQ(message(request), "messages[0].reasoning_content: not valid UTF-8 at byte 1");
  request.messages =
      Json::array({{{"role", "assistant"},
                    {"tool_calls", Json::array({{{"function", {{"name", "f"}, {"arguments", {{bad, 1}}}}}}})}}});
  EXPECT_EQ(message(request), "messages[0].tool_calls[0].function.arguments: not valid UTF-8 at byte 1");
  request.messages = Json::array({{{"role", "user"}, {"content", "x"}}});
  request.tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"x", bad}}}}});
  EXPECT_EQ(message(request), "tools[0]: not valid UTF-8 at byte 1");
}

}  // namespace
}  // namespace trireme::text
