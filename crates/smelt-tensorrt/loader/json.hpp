// Reads requests and writes events, each a line of JSON.
//
// Requests come from smelt alone: what does not read is a fault of ours.  Knows nothing of what the lines mean.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace json {

// A request is an object with a list of inputs that have lists of numbers; deeper is none of ours.
constexpr int DEPTH_MAX = 8;
// A vendor's message may quote a whole graph; what names the fault stands at its beginning.
constexpr size_t TEXT_BYTES_MAX = 4096;

struct Value {
    bool is_given = false;
    std::string text;  // what a string holds, or a number as it is written
    std::vector<Value> list;
    std::map<std::string, Value> fields;

    int64_t number() const { return std::strtoll(text.c_str(), nullptr, 10); }
    const Value& operator[](const char* name) const {
        static const Value none;
        auto found = fields.find(name);
        return found == fields.end() ? none : found->second;
    }
};

class Reader {
public:
    explicit Reader(const std::string& line) : at_(line.data()), end_(at_ + line.size()) {}

    // Whether the line is one value.
    bool read(Value& value) { return one(value, 0) && (skip_blanks(), at_ == end_); }

private:
    void skip_blanks() {
        while (at_ < end_ && *at_ == ' ') ++at_;
    }
    bool take(char wanted) {
        skip_blanks();
        bool is_there = at_ < end_ && *at_ == wanted;
        if (is_there) ++at_;
        return is_there;
    }
    bool one(Value& value, int depth) {
        value.is_given = true;
        if (depth == DEPTH_MAX) return false;
        if (take('"')) return string(value.text);
        if (take('{')) return take('}') || object(value, depth);
        if (take('[')) return take(']') || array(value, depth);
        return word(value);
    }
    bool object(Value& value, int depth) {
        do {
            std::string name;
            if (!take('"') || !string(name) || !take(':')) return false;
            if (!one(value.fields[name], depth + 1)) return false;
        } while (take(','));
        return take('}');
    }
    bool array(Value& value, int depth) {
        do {
            value.list.emplace_back();
            if (!one(value.list.back(), depth + 1)) return false;
        } while (take(','));
        return take(']');
    }
    // A number, `true`, `false` or `null`.
    bool word(Value& value) {
        const std::string letters = "+-.0123456789Eaeflnrstu";
        while (at_ < end_ && letters.find(*at_) != std::string::npos) value.text += *at_++;
        value.is_given = value.text != "null";
        return !value.text.empty();
    }
    bool string(std::string& text) {
        while (at_ < end_) {
            char c = *at_++;
            if (c == '"') return true;
            if (c == '\\' && !escape(c)) return false;
            text += c;
        }
        return false;
    }
    // smelt escapes quotes, backslashes and control characters; all else it writes as it is.
    bool escape(char& c) {
        if (at_ == end_) return false;
        static const std::map<char, char> short_ones = {{'"', '"'},  {'\\', '\\'}, {'n', '\n'},
                                                        {'r', '\r'}, {'t', '\t'},  {'b', '\b'},
                                                        {'f', '\f'}, {'/', '/'}};
        char kind = *at_++;
        auto found = short_ones.find(kind);
        if (found != short_ones.end()) return c = found->second, true;
        if (kind != 'u' || end_ - at_ < 4) return false;
        c = static_cast<char>(std::strtol(std::string(at_, 4).c_str(), nullptr, 16));
        at_ += 4;
        return true;
    }

    const char* at_;
    const char* end_;
};

// How many bytes the character at `at` takes in UTF-8; nothing where it is none.
inline size_t length_of_character(const std::string& text, size_t at) {
    unsigned char first = text[at];
    size_t length = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3
                  : first >= 0xF0 && first < 0xF5 ? 4 : 0;
    if (length == 0 || at + length > text.size()) return 0;
    for (size_t more = 1; more < length; ++more) {
        if ((static_cast<unsigned char>(text[at + more]) & 0xC0) != 0x80) return 0;
    }
    // Forms that are too long, and halves of pairs, are no UTF-8 either.
    unsigned char second = length > 2 ? text[at + 1] : 0xA0;
    bool is_sound = !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second >= 0xA0)
                 && !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second >= 0x90);
    return is_sound ? length : 0;
}

inline std::string quoted(const char* raw) {
    std::string text = raw ? raw : "", quoted = "\"";
    for (size_t at = 0; at < text.size() && at < TEXT_BYTES_MAX;) {
        size_t length = length_of_character(text, at);
        unsigned char c = text[at];
        if (length == 0) {
            quoted += "\\ufffd";
        } else if (c < 0x20 || c == '"' || c == '\\') {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            quoted += escaped;
        } else {
            quoted.append(text, at, length);
        }
        at += length == 0 ? 1 : length;
    }
    return quoted + '"';
}

// One line, begun with its name and sent when it goes.
class Event {
public:
    explicit Event(const char* name) : line_("{\"event\":") { line_ += quoted(name); }
    Event(const Event&) = delete;
    ~Event() {
        static std::mutex one_at_a_time;
        std::lock_guard<std::mutex> lock(one_at_a_time);
        line_ += "}\n";
        std::fwrite(line_.data(), 1, line_.size(), out());
        std::fflush(out());
    }
    Event& text(const char* name, const char* value) { return raw(name, quoted(value)); }
    Event& text(const char* name, const std::string& value) { return raw(name, quoted(value.c_str())); }
    template <typename Number>
    Event& number(const char* name, Number value) {
        return raw(name, std::to_string(value));
    }
    Event& raw(const char* name, const std::string& value) {
        line_ += ',' + quoted(name) + ':' + value;
        return *this;
    }
    // Where lines go.
    static FILE*& out() {
        static FILE* file = stdout;
        return file;
    }

private:
    std::string line_;
};

}  // namespace json
