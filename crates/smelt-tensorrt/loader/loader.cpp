// Parses and builds with a vendor's TensorRT, in a process of its own.
//
// Requests come on standard input, a line of JSON each: `check` asks the parser of a graph, `build` makes a plan of one,
// `cancel` ends the build that runs.  Events go to standard output; `done` is the last of each request.  The process
// ends with its standard input, whatever it is doing.  It decides nothing: what an event means is for smelt to say.

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <thread>

#include "allocator.hpp"
#include "json.hpp"
#include "vendor.hpp"

namespace loader {

using vendor::Handle;
using vendor::work;

// Messages of a request; a parser that warns of every node warns of the same thing.
constexpr int MESSAGES_MAX = 200;
// Steps are told no more often than a person reads.
constexpr std::chrono::milliseconds STEP_PAUSE(100);
// Errors of a parser; after the first it is most often lost.
constexpr int ERRORS_MAX = 32;
// Requests that wait.  smelt sends the next when the last is done.
constexpr size_t WAITING_MAX = 4;
// Sizes of a tensor, as the interface has it.
constexpr int SIZES_MAX = 8;

std::atomic<bool> is_cancelled(false);

class Log : public vendor::Logger {
public:
    void log(int32_t severity, const char* text) noexcept override {
        if (severity > vendor::SEVERITY_WARNING || told_++ >= MESSAGES_MAX) return;
        const char* word = severity == vendor::SEVERITY_WARNING ? "warning" : "error";
        json::Event("message").text("severity", word).text("text", text);
    }
    void begin() { told_ = 0; }

private:
    std::atomic<int> told_{0};
};

class Progress : public vendor::ProgressMonitor {
public:
    void phase_start(const char* phase, const char* parent, int32_t steps) noexcept override {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!parent) outermost_ = phase;
        if (is_due(phase)) json::Event("phase").text("name", phase).number("steps", steps);
    }
    bool step_complete(const char* phase, int32_t step) noexcept override {
        std::lock_guard<std::mutex> lock(mutex_);
        if (is_due(phase)) json::Event("step").text("name", phase).number("step", step);
        ++steps_;
        return !is_cancelled;
    }
    void phase_finish(const char*) noexcept override {}

    int64_t steps() {
        std::lock_guard<std::mutex> lock(mutex_);
        return steps_;
    }

private:
    // The outermost phase has few steps, which are told at once.
    bool is_due(const char* phase) {
        const auto now = std::chrono::steady_clock::now();
        if (outermost_ != phase && now - told_ < STEP_PAUSE) return false;
        told_ = now;
        return true;
    }

    std::mutex mutex_;
    std::string outermost_;
    int64_t steps_ = 0;
    std::chrono::steady_clock::time_point told_{};
};

// The vendor's libraries, loaded.
struct Library {
    const vendor::Generation* generation = nullptr;
    int32_t version = 0, parser_version = 0;
    void* (*create_builder)(void* logger, int32_t version) = nullptr;
    void* (*create_parser)(void* network, void* logger, int version) = nullptr;
};

bool fail(const char* what, const std::string& why) {
    json::Event("failed").text("what", what).text("why", why);
    return false;
}

bool load(const json::Value& request, Library& library) {
    void* core = dlopen(request["library"].text.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void* parser = core ? dlopen(request["parser"].text.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!parser) return fail("library", dlerror());
    auto version = reinterpret_cast<int32_t (*)()>(dlsym(core, "getInferLibVersion"));
    auto parser_version = reinterpret_cast<int (*)()>(dlsym(parser, "getNvOnnxParserVersion"));
    library.create_builder =
        reinterpret_cast<decltype(library.create_builder)>(dlsym(core, "createInferBuilder_INTERNAL"));
    library.create_parser =
        reinterpret_cast<decltype(library.create_parser)>(dlsym(parser, "createNvOnnxParser_INTERNAL"));
    if (!version || !parser_version || !library.create_builder || !library.create_parser) {
        return fail("library", "it has not the entry points of TensorRT's builder and parser");
    }
    library.version = version();
    library.parser_version = parser_version();
    const int major = library.version / vendor::Generation::MAJOR;
    const int minor = library.version % vendor::Generation::MAJOR / vendor::Generation::MINOR;
    for (const vendor::Generation& generation : vendor::GENERATIONS) {
        if (generation.serves(major, minor)) library.generation = &generation;
    }
    if (library.generation) return true;
    const std::string words = std::to_string(major) + '.' + std::to_string(minor);
    return fail("version", "its version " + words + " is none whose interface is known here");
}

// A network and the parser that fills it.
class Graph {
public:
    Graph(const Library& library, Handle* builder, Log& log) : slots_(library.generation->slots) {
        network_ = work<Handle*>(builder, slots_.builder.create_network, library.generation->strongly_typed);
        if (network_) parser_ = library.create_parser(network_, &log, library.parser_version);
    }
    Graph(const Graph&) = delete;
    ~Graph() {
        if (parser_) vendor::call<void>(parser_, slots_.parser.destroy);
        vendor::destroy(network_);
    }

    // Whether the parser takes the file; tells what it made of it, or why not.
    bool parse(const std::string& file) {
        if (!parser_) return fail("parser", "the library made no network or no parser");
        const bool is_taken = vendor::call<bool>(parser_, slots_.parser.parse_file, file.c_str(), int32_t(2));
        const int count = vendor::call<int>(parser_, slots_.parser.error_count);
        for (int at = 0; at < count && at < ERRORS_MAX; ++at) tell_error(at);
        if (is_taken) tell_network();
        return is_taken;
    }

    Handle* network() const { return network_; }

    int input_count() const { return work<int32_t>(network_, slots_.network.input_count); }
    Handle* input(int at) const { return work<Handle*>(network_, slots_.network.input, int32_t(at)); }
    vendor::Dims sizes(Handle* tensor) const { return work<vendor::Dims>(tensor, slots_.tensor.sizes); }
    const char* name(Handle* tensor) const { return work<const char*>(tensor, slots_.tensor.name); }
    bool is_shape(Handle* tensor) const { return work<bool>(tensor, slots_.tensor.is_shape); }

private:
    void tell_error(int at) {
        void* error = vendor::call<void*>(parser_, slots_.parser.error, at);
        if (!error) return;
        auto text = [&](int slot) { return vendor::call<const char*>(error, slot); };
        json::Event("refused")
            .number("code", vendor::call<int32_t>(error, slots_.error.code))
            .text("text", text(slots_.error.text))
            .number("node", vendor::call<int>(error, slots_.error.node))
            .text("name", text(slots_.error.node_name))
            .text("operator", text(slots_.error.node_operator))
            .text("function", text(slots_.error.function));
    }
    void tell_network() {
        const int outputs = work<int32_t>(network_, slots_.network.output_count);
        std::string taken, given;
        for (int at = 0; at < input_count(); ++at) taken += (at ? "," : "") + described(input(at));
        for (int at = 0; at < outputs; ++at) {
            given += (at ? "," : "") + described(work<Handle*>(network_, slots_.network.output, int32_t(at)));
        }
        json::Event("parsed")
            .number("layers", work<int32_t>(network_, slots_.network.layer_count))
            .raw("inputs", '[' + taken + ']')
            .raw("outputs", '[' + given + ']');
    }
    std::string described(Handle* tensor) const {
        const vendor::Dims dims = sizes(tensor);
        std::string text;
        for (int at = 0; at < dims.count && at < SIZES_MAX; ++at) {
            text += (at ? "," : "") + std::to_string(dims.sizes[at]);
        }
        const auto type = std::to_string(work<int32_t>(tensor, slots_.tensor.type));
        return "{\"name\":" + json::quoted(name(tensor)) + ",\"type\":" + type + ",\"sizes\":[" + text + "]}";
    }

    const vendor::Slots& slots_;
    Handle* network_ = nullptr;
    void* parser_ = nullptr;
};

// One build: what is set before it, and what comes of it.
class Build {
public:
    Build(const Library& library, Handle* builder, const json::Value& request)
        : library_(library), slots_(library.generation->slots), builder_(builder), request_(request),
          allocator_(Memory::of_driver(), request["memory"].number()) {}

    bool run(Log& log) {
        Graph graph(library_, builder_, log);
        if (!graph.parse(request_["onnx"].text)) return false;
        work<void>(builder_, slots_.builder.set_gpu_allocator, static_cast<void*>(&allocator_));
        Handle* config = work<Handle*>(builder_, slots_.builder.create_config);
        if (!config) return fail("config", "the library made no configuration");
        const bool is_built = set(config) && set_profile(config, graph) && build(config, graph);
        vendor::destroy(config);
        return is_built;
    }

private:
    bool set(Handle* config) {
        const auto& slots = slots_.config;
        if (request_["workspace"].is_given) {
            const size_t bytes = request_["workspace"].number();
            work<void>(config, slots.set_pool_limit, vendor::POOL_WORKSPACE, bytes);
        }
        if (request_["level"].is_given) work<void>(config, slots.set_level, int32_t(request_["level"].number()));
        work<void>(config, slots.set_progress_monitor, static_cast<void*>(&progress_));
        if (!request_["target"].is_given) return true;
        if (!library_.generation->names_target()) return fail("target", "it builds for the GPU that is here alone");
        const auto target = int32_t(request_["target"].number());
        const bool is_taken = work<bool>(config, slots.set_target_count, int32_t(1))
                           && work<bool>(config, slots.set_target, target, int32_t(0));
        return is_taken || fail("target", "it does not build for sm" + std::to_string(target));
    }

    // Shapes of the inputs whose sizes vary: the smallest, the likeliest and the largest.
    bool set_profile(Handle* config, const Graph& graph) {
        Handle* profile = work<Handle*>(builder_, slots_.builder.create_profile);
        bool has_any = false;
        for (int at = 0; at < graph.input_count(); ++at) {
            const char* name = graph.name(graph.input(at));
            if (graph.is_shape(graph.input(at))) return fail("shape", std::string(name) + " is itself a shape");
            const json::Value& shapes = request_["shapes"][name];
            if (!shapes.is_given) continue;
            has_any = true;
            if (!set_shape(profile, name, shapes)) return fail("shape", std::string(name) + " does not take its shapes");
        }
        if (!has_any) return true;
        if (!work<bool>(profile, slots_.profile.is_valid)) return fail("shape", "the shapes make no profile");
        return work<int32_t>(config, slots_.config.add_profile, profile) >= 0
            || fail("shape", "the shapes are not the graph's");
    }
    bool set_shape(Handle* profile, const char* name, const json::Value& shapes) {
        const char* const words[] = {"min", "opt", "max"};
        for (int32_t select : {vendor::SHAPE_MIN, vendor::SHAPE_OPT, vendor::SHAPE_MAX}) {
            const std::vector<json::Value>& sizes = shapes[words[select]].list;
            vendor::Dims dims = {int32_t(std::min<size_t>(sizes.size(), SIZES_MAX)), {}};
            for (int at = 0; at < dims.count; ++at) dims.sizes[at] = sizes[at].number();
            if (!work<bool>(profile, slots_.profile.set_sizes, name, select, &dims)) return false;
        }
        return true;
    }

    bool build(Handle* config, const Graph& graph) {
        Handle* plan = work<Handle*>(builder_, slots_.builder.build, graph.network(), config);
        const Counts counts = allocator_.counts();
        json::Event("memory")
            .number("requests", counts.requests)
            .number("refused", counts.refused)
            .number("held-most", counts.held_most)
            .number("largest", counts.largest)
            .number("refused-largest", counts.refused_largest);
        json::Event("steps").number("count", progress_.steps());
        if (is_cancelled) {
            json::Event("cancelled");
            return false;
        }
        if (!plan) return fail("build", "the builder gave no plan");
        const bool is_written = write(work<const char*>(plan, slots_.memory.data), work<size_t>(plan, slots_.memory.size));
        vendor::destroy(plan);
        return is_written;
    }
    bool write(const char* bytes, size_t count) {
        if (!bytes || count == 0) return fail("build", "the builder gave an empty plan");
        const std::string& path = request_["plan"].text;
        std::FILE* file = std::fopen(path.c_str(), "wbx");
        const bool is_whole = file && std::fwrite(bytes, 1, count, file) == count && std::fflush(file) == 0;
        const int error = errno;
        if (file) std::fclose(file);
        if (!is_whole) return fail("write", strerror(error));
        json::Event("built").number("bytes", count);
        return true;
    }

    const Library& library_;
    const vendor::Slots& slots_;
    Handle* builder_;
    const json::Value& request_;
    CountingAllocator allocator_;
    Progress progress_;
};

// Requests as they come.
class Requests {
public:
    // Reads until there is no more, and ends the process then: who asked is gone, or has what it wants.
    void read() {
        std::string line;
        while (std::getline(std::cin, line)) {
            json::Value request;
            if (!json::Reader(line).read(request)) fail("request", "it is not one of smelt's");
            else if (request["do"].text == "cancel") is_cancelled = true;
            else put(request);
        }
        // Neither destructors nor the vendor's own ends: they may wait for what will not come.
        _exit(0);
    }
    json::Value take() {
        std::unique_lock<std::mutex> lock(mutex_);
        has_more_.wait(lock, [this] { return !waiting_.empty(); });
        json::Value first = waiting_.front();
        waiting_.pop_front();
        return first;
    }

private:
    void put(const json::Value& request) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (waiting_.size() == WAITING_MAX) return void(fail("request", "too many wait"));
        waiting_.push_back(request);
        has_more_.notify_one();
    }

    std::mutex mutex_;
    std::condition_variable has_more_;
    std::deque<json::Value> waiting_;
};

// Does a request, and says whether it came out well.
bool perform(const Library& library, Handle* builder, Log& log, const json::Value& request) {
    const std::string& what = request["do"].text;
    log.begin();
    is_cancelled = false;
    if (what == "check") return Graph(library, builder, log).parse(request["onnx"].text);
    if (what == "build") return Build(library, builder, request).run(log);
    return fail("request", "it is not one of smelt's");
}

int serve() {
    Requests requests;
    std::thread(&Requests::read, &requests).detach();
    const json::Value first = requests.take();
    Library library;
    if (!load(first, library)) return 1;
    json::Event("loaded").number("version", library.version).number("parser-version", library.parser_version);
    Log log;
    auto* builder = static_cast<Handle*>(library.create_builder(&log, library.version));
    if (!builder) return fail("builder", "the library made no builder"), 1;
    for (;;) {
        const json::Value request = requests.take();
        const bool is_well = perform(library, builder, log, request);
        json::Event("done").raw("well", is_well ? "true" : "false");
    }
}

// What the vendor prints by itself must not come between events.
bool part_outputs() {
    const int own = dup(STDOUT_FILENO);
    json::Event::out() = own < 0 ? nullptr : fdopen(own, "w");
    return json::Event::out() && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

}  // namespace loader

int main() {
    if (!loader::part_outputs()) return 1;
    const int code = loader::serve();
    _exit(code);
}
