// Counts the memory of a GPU that a builder asks for, and refuses what is over a limit.
//
// A builder that never touches a GPU never asks: TensorRT for RTX where it builds for another one.

#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "json.hpp"
#include "vendor.hpp"

namespace loader {

// Refusals are told one by one up to here; a builder that tries thousands of kernels may meet as many.
constexpr uint64_t REFUSALS_TOLD_MAX = 64;

// Where memory comes from: the driver, or what a test puts in its place.  0 is success.
struct Memory {
    using Allocate = int (*)(uint64_t* address, size_t bytes);
    using Free = int (*)(uint64_t address);
    Allocate allocate = nullptr;
    Free free = nullptr;

    // The driver's; without one there is nothing to allocate.
    static Memory of_driver() {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW);
        Memory memory;
        if (!driver) return memory;
        memory.allocate = reinterpret_cast<Allocate>(dlsym(driver, "cuMemAlloc_v2"));
        memory.free = reinterpret_cast<Free>(dlsym(driver, "cuMemFree_v2"));
        return memory;
    }
};

// What was asked, in bytes but for counts.
struct Counts {
    uint64_t requests = 0, refused = 0, held = 0, held_most = 0, largest = 0, refused_largest = 0;
};

class CountingAllocator : public vendor::GpuAllocator {
public:
    // `limit_bytes` of 0 is none.
    CountingAllocator(Memory memory, uint64_t limit_bytes) : memory_(memory), limit_bytes_(limit_bytes) {}

    void* allocate(uint64_t bytes, uint64_t, uint32_t) noexcept override { return give(bytes); }
    bool deallocate(void* memory) noexcept override { return take_back(memory); }
    // Memory that is there at once is there in the order of any stream; what is given back must wait for its stream,
    // which the driver's free does.
    void* allocate_async(uint64_t bytes, uint64_t, uint32_t, void*) noexcept override { return give(bytes); }
    bool deallocate_async(void* memory, void*) noexcept override { return take_back(memory); }

    Counts counts() {
        std::lock_guard<std::mutex> lock(mutex_);
        return counts_;
    }

private:
    void* give(uint64_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        ++counts_.requests;
        counts_.largest = std::max(counts_.largest, bytes);
        const bool is_over = bytes > limit_bytes_ || counts_.held > limit_bytes_ - bytes;
        if (limit_bytes_ != 0 && is_over) return refuse(bytes, "limit");
        uint64_t address = 0;
        if (!memory_.allocate) return refuse(bytes, "no driver");
        if (memory_.allocate(&address, bytes) != 0 || address == 0) return refuse(bytes, "device");
        sizes_[address] = bytes;
        counts_.held += bytes;
        counts_.held_most = std::max(counts_.held_most, counts_.held);
        return reinterpret_cast<void*>(address);
    }
    // TensorRT takes nothing for "cannot be met" and goes on with a kernel that wants less.
    void* refuse(uint64_t bytes, const char* by) {
        counts_.refused_largest = std::max(counts_.refused_largest, bytes);
        if (++counts_.refused <= REFUSALS_TOLD_MAX) {
            json::Event("memory-refused").number("bytes", bytes).number("held", counts_.held).text("by", by);
        }
        return nullptr;
    }
    bool take_back(void* memory) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = sizes_.find(reinterpret_cast<uint64_t>(memory));
        if (found == sizes_.end()) return memory == nullptr;
        counts_.held -= found->second;
        const bool is_freed = memory_.free(found->first) == 0;
        sizes_.erase(found);
        return is_freed;
    }

    const Memory memory_;
    const uint64_t limit_bytes_;
    std::mutex mutex_;
    std::map<uint64_t, uint64_t> sizes_;
    Counts counts_;
};

}  // namespace loader
