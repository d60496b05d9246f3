// Asks the loader's allocator for memory of a device that is made up.

#include "allocator.hpp"

#include <cstdio>

namespace {

int devices_left = 4;
uint64_t next_address = 4096;

// A device that is full after some requests.
int allocate(uint64_t* address, size_t bytes) {
    if (devices_left == 0) return 2;
    --devices_left;
    *address = next_address;
    next_address += bytes;
    return 0;
}

int give_back(uint64_t) { return 0; }

int wrong = 0;

void hold(const char* what, uint64_t found, uint64_t expected) {
    if (found == expected) return;
    std::fprintf(stderr, "%s is %lu, not %lu\n", what, static_cast<unsigned long>(found), static_cast<unsigned long>(expected));
    wrong = 1;
}

}  // namespace

int main() {
    loader::Memory device;
    device.allocate = allocate;
    device.free = give_back;
    loader::CountingAllocator limited(device, 100);
    vendor::GpuAllocator& as_tensorrt_sees_it = limited;
    void* first = as_tensorrt_sees_it.allocate_async(50, 256, 0, nullptr);
    hold("the first request's", first != nullptr, true);
    for (int at = 0; at < 1000; ++at) hold("one over the limit", limited.allocate(60, 256, 0) == nullptr, true);
    void* second = limited.allocate(50, 256, 0);
    hold("one that fits exactly", second != nullptr, true);
    hold("one of more than numbers hold", limited.allocate(UINT64_MAX, 256, 0) == nullptr, true);
    hold("given back", as_tensorrt_sees_it.deallocate_async(first, nullptr), true);
    hold("given back twice", limited.deallocate(first), false);
    hold("nothing given back", limited.deallocate(nullptr), true);
    hold("one where there is room again", limited.allocate(50, 256, 0) != nullptr, true);
    const loader::Counts counts = limited.counts();
    hold("requests", counts.requests, 1004);
    hold("refused", counts.refused, 1001);
    hold("held at most", counts.held_most, 100);
    hold("held", counts.held, 100);
    hold("the largest that fitted nowhere", counts.refused_largest, UINT64_MAX);

    // A full device, then none: a refusal each, of this kind.
    loader::CountingAllocator free_of_limits(device, 0);
    hold("the device's last", free_of_limits.allocate(1, 256, 0) != nullptr, true);
    for (int at = 0; at < 2; ++at) hold("a full device's", free_of_limits.allocate(1, 256, 0) == nullptr, true);
    loader::CountingAllocator without_device(loader::Memory{}, 0);
    hold("no device's", without_device.allocate(1, 256, 0) == nullptr, true);
    return wrong;
}
