// Declares what smelt calls of TensorRT, and what TensorRT calls of smelt.
//
// TensorRT's objects are two words: a table of their own functions, and the object that does the work, which has a
// table too.  A call goes through a place in that table.  Places stay within a major version, so that they stand in
// rows, one for each generation of the interface; no header of the vendor is needed.  `cargo xtask toolchains` holds
// rows and declarations to the vendor's headers.

#pragma once

#include <cstddef>
#include <cstdint>

namespace vendor {

// Sizes along each axis; -1 is one that varies.
struct Dims {
    int32_t count;
    int64_t sizes[8];
};

// A pool of memory of the builder's that is limited: what kernels may use besides tensors.
constexpr int32_t POOL_WORKSPACE = 0;
// Which of the three shapes of a profile is set.
enum Shape : int32_t { SHAPE_MIN = 0, SHAPE_OPT = 1, SHAPE_MAX = 2 };
// From here on messages are of no use to who waits.
enum Severity : int32_t { SEVERITY_INTERNAL = 0, SEVERITY_ERROR = 1, SEVERITY_WARNING = 2 };

// Places in tables.  The first two of a working object's are its destructors'.
struct Slots {
    struct { int set_gpu_allocator, create_config, create_network, create_profile, build; } builder;
    struct {
        int add_profile, set_pool_limit, set_level, set_progress_monitor, set_target_count, set_target;
    } config;
    struct { int layer_count, input_count, input, output_count, output; } network;
    struct { int name, sizes, type, is_shape; } tensor;
    struct { int set_sizes, is_valid; } profile;
    struct { int data, size; } memory;
    // Of the parser's own tables: it has no object behind it.
    struct { int parse_file, error_count, error, destroy; } parser;
    struct { int code, text, file, line, function, node, node_name, node_operator; } error;
};

// A place that a generation does not have.
constexpr int NONE = -1;

// A generation of the interface: the versions whose tables are alike.
struct Generation {
    const char* name;
    int major;
    // Of the major version, the minor ones that the vendor's headers are known of: a later one may have moved places,
    // as TensorRT for RTX did between 1.4 and 1.5.
    int minor_first, minor_last;
    // The versions are counted in these for each major one, and in hundreds for each minor one.
    static constexpr int32_t MAJOR = 10000, MINOR = 100;
    // Flags of a network whose types are those of its graph.
    uint32_t strongly_typed;
    Slots slots;

    constexpr bool serves(int major, int minor) const {
        return major == this->major && minor_first <= minor && minor <= minor_last;
    }
    // Whether plans can be built for another GPU than the one that is here.
    bool names_target() const { return slots.config.set_target != NONE; }
};

constexpr Generation GENERATIONS[] = {
    {"TensorRT for RTX", 1, 5, 7, 1,
     {
         {4, 5, 6, 7, 11},
         {23, 32, 36, 45, 55, 57},
         {12, 14, 15, 16, 17},
         {3, 5, 6, 11},
         {2, 7},
         {2, 3},
         {1, 3, 4, 7},
         {0, 1, 2, 3, 4, 5, 6, 7},
     }},
    {"TensorRT", 11, 4, 4, 1,
     {
         {4, 5, 6, 7, 11},
         {23, 32, 36, 45, NONE, NONE},
         {12, 14, 15, 16, 17},
         {3, 5, 6, 15},
         {2, 7},
         {2, 3},
         {1, 3, 4, 7},
         {0, 1, 2, 3, 4, 5, 6, 7},
     }},
};

// An object that calls go through: TensorRT's public classes are this.
struct Handle {
    void* own_table;
    void* work;
};

// Calls the function at a place of an object's table, as the Itanium C++ ABI does on x86-64 and AArch64.
template <typename Result, typename... Arguments>
Result call(void* object, int slot, Arguments... arguments) {
    using Function = Result (*)(void*, Arguments...);
    void** table = *static_cast<void***>(object);
    return reinterpret_cast<Function>(table[slot])(object, arguments...);
}

// The same, of what does the work behind a public object.
template <typename Result, typename... Arguments>
Result work(Handle* handle, int slot, Arguments... arguments) {
    return call<Result>(handle->work, slot, arguments...);
}

// Destroys a public object of the library, whose second place is the destructor that frees it.
inline void destroy(Handle* handle) {
    if (handle) call<void>(handle, 1);
}

// What TensorRT asks of any object that it is given.
struct InterfaceInfo {
    const char* kind;
    int32_t major;
    int32_t minor;
};

class Versioned {
public:
    virtual int32_t language() const noexcept { return 0; }  // C++
    virtual InterfaceInfo info() const noexcept = 0;
    virtual ~Versioned() noexcept = default;
};

class Logger : public Versioned {
public:
    InterfaceInfo info() const noexcept override { return {"ILogger", 1, 0}; }
    virtual void log(int32_t severity, const char* text) noexcept = 0;
};

class ProgressMonitor : public Versioned {
public:
    InterfaceInfo info() const noexcept override { return {"IProgressMonitor", 1, 0}; }
    virtual void phase_start(const char* phase, const char* parent, int32_t steps) noexcept = 0;
    // Whether to go on.
    virtual bool step_complete(const char* phase, int32_t step) noexcept = 0;
    virtual void phase_finish(const char* phase) noexcept = 0;
};

class GpuAllocator : public Versioned {
public:
    InterfaceInfo info() const noexcept override { return {"IGpuAllocator", 1, 0}; }
    // Nothing where the request cannot be met.
    virtual void* allocate(uint64_t bytes, uint64_t alignment, uint32_t flags) noexcept = 0;
    virtual void* reallocate(void*, uint64_t, uint64_t) noexcept { return nullptr; }
    virtual bool deallocate(void* memory) noexcept = 0;
    virtual void* allocate_async(uint64_t bytes, uint64_t alignment, uint32_t flags, void* stream) noexcept = 0;
    virtual bool deallocate_async(void* memory, void* stream) noexcept = 0;
};

}  // namespace vendor
