// Holds what the loader declares of TensorRT to the vendor's headers: places in tables, layouts of what is passed,
// values of enums.  Compiled against one version's headers, it looks at the row of its generation; it prints what
// differs and ends with 1, or says how much it compared.

#include <cstdio>
#include <cstring>
#include <type_traits>

#include <NvInfer.h>
#include <NvOnnxParser.h>

#include "vendor.hpp"

namespace {

int compared = 0, different = 0;

void hold(const char* what, long ours, long theirs) {
    ++compared;
    if (ours == theirs) return;
    ++different;
    std::printf("%s is %ld, and the headers have %ld\n", what, ours, theirs);
}

// The place of a virtual function in its table, as the ABI of x86-64 writes pointers to such.
template <typename Function>
long place(Function function) {
    std::size_t words[2];
    static_assert(sizeof words == sizeof function, "a pointer to a member is two words");
    std::memcpy(words, &function, sizeof words);
    return words[0] % 2 == 1 ? static_cast<long>(words[0] / sizeof(void*)) : -1;
}

// Where a public class keeps the object that does the work.
template <typename Public>
struct Inner : Public {
    static long offset() {
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
        return offsetof(Inner, mImpl);
    }
};

template <typename Public>
void hold_handle(const char* name) {
    hold(name, offsetof(vendor::Handle, work), Inner<Public>::offset());
}

#define HOLD(ours, theirs) hold(#ours, place(&ours), place(&theirs))
#define PLACE(slot, theirs) hold(#slot, slots.slot, place(&theirs))

void hold_places(const vendor::Slots& slots) {
    using namespace nvinfer1::apiv;
    PLACE(builder.set_gpu_allocator, VBuilder::setGpuAllocator);
    PLACE(builder.create_config, VBuilder::createBuilderConfig);
    PLACE(builder.create_network, VBuilder::createNetworkV2);
    PLACE(builder.create_profile, VBuilder::createOptimizationProfile);
    PLACE(builder.build, VBuilder::buildSerializedNetwork);
    PLACE(config.add_profile, VBuilderConfig::addOptimizationProfile);
    PLACE(config.set_pool_limit, VBuilderConfig::setMemoryPoolLimit);
    PLACE(config.set_level, VBuilderConfig::setBuilderOptimizationLevel);
    PLACE(config.set_progress_monitor, VBuilderConfig::setProgressMonitor);
    PLACE(network.layer_count, VNetworkDefinition::getNbLayers);
    PLACE(network.input_count, VNetworkDefinition::getNbInputs);
    PLACE(network.input, VNetworkDefinition::getInput);
    PLACE(network.output_count, VNetworkDefinition::getNbOutputs);
    PLACE(network.output, VNetworkDefinition::getOutput);
    PLACE(tensor.name, VTensor::getName);
    PLACE(tensor.sizes, VTensor::getDimensions);
    PLACE(tensor.type, VTensor::getType);
    PLACE(tensor.is_shape, VTensor::isShapeTensor);
    PLACE(profile.set_sizes, VOptimizationProfile::setDimensions);
    PLACE(profile.is_valid, VOptimizationProfile::isValid);
    PLACE(memory.data, VHostMemory::data);
    PLACE(memory.size, VHostMemory::size);
    using nvonnxparser::IParser;
    using nvonnxparser::IParserError;
    PLACE(parser.parse_file, IParser::parseFromFile);
    PLACE(parser.error_count, IParser::getNbErrors);
    PLACE(parser.error, IParser::getError);
    // A destructor has no address; the one that frees stands two places behind what comes before it.
    hold("parser.destroy", slots.parser.destroy, place(&IParser::clearErrors) + 2);
    PLACE(error.code, IParserError::code);
    PLACE(error.text, IParserError::desc);
    PLACE(error.file, IParserError::file);
    PLACE(error.line, IParserError::line);
    PLACE(error.function, IParserError::func);
    PLACE(error.node, IParserError::node);
    PLACE(error.node_name, IParserError::nodeName);
    PLACE(error.node_operator, IParserError::nodeOperator);
}

// Only TensorRT for RTX builds for other GPUs than the one that is here.
void hold_targets(const vendor::Slots& slots) {
#if NV_TENSORRT_MAJOR < 10
    using nvinfer1::apiv::VBuilderConfig;
    PLACE(config.set_target_count, VBuilderConfig::setNbComputeCapabilities);
    PLACE(config.set_target, VBuilderConfig::setComputeCapability);
    hold("a target's number", 86, static_cast<long>(nvinfer1::ComputeCapability::kSM86));
#else
    hold("config.set_target_count", slots.config.set_target_count, vendor::NONE);
    hold("config.set_target", slots.config.set_target, vendor::NONE);
#endif
}

void hold_callbacks() {
    using namespace vendor;
    HOLD(Versioned::language, nvinfer1::IVersionedInterface::getAPILanguage);
    HOLD(Versioned::info, nvinfer1::IVersionedInterface::getInterfaceInfo);
    HOLD(Logger::log, nvinfer1::ILogger::log);
    HOLD(ProgressMonitor::phase_start, nvinfer1::IProgressMonitor::phaseStart);
    HOLD(ProgressMonitor::step_complete, nvinfer1::IProgressMonitor::stepComplete);
    HOLD(ProgressMonitor::phase_finish, nvinfer1::IProgressMonitor::phaseFinish);
    HOLD(GpuAllocator::allocate, nvinfer1::IGpuAllocator::allocate);
    HOLD(GpuAllocator::reallocate, nvinfer1::IGpuAllocator::reallocate);
    HOLD(GpuAllocator::deallocate, nvinfer1::IGpuAllocator::deallocate);
    HOLD(GpuAllocator::allocate_async, nvinfer1::IGpuAllocator::allocateAsync);
    HOLD(GpuAllocator::deallocate_async, nvinfer1::IGpuAllocator::deallocateAsync);
    const bool logger_is_versioned = std::is_base_of<nvinfer1::IVersionedInterface, nvinfer1::ILogger>::value;
    hold("whether a logger has a version", true, logger_is_versioned);
}

void hold_data() {
    using nvinfer1::Dims;
    hold("the size of Dims", sizeof(vendor::Dims), sizeof(Dims));
    hold("Dims.sizes", offsetof(vendor::Dims, sizes), offsetof(Dims, d));
    hold("the size of InterfaceInfo", sizeof(vendor::InterfaceInfo), sizeof(nvinfer1::InterfaceInfo));
    hold("InterfaceInfo.minor", offsetof(vendor::InterfaceInfo, minor), offsetof(nvinfer1::InterfaceInfo, minor));
    using nvinfer1::ILogger;
    hold("SEVERITY_WARNING", vendor::SEVERITY_WARNING, static_cast<long>(ILogger::Severity::kWARNING));
    using nvinfer1::OptProfileSelector;
    hold("SHAPE_OPT", vendor::SHAPE_OPT, static_cast<long>(OptProfileSelector::kOPT));
    hold("SHAPE_MAX", vendor::SHAPE_MAX, static_cast<long>(OptProfileSelector::kMAX));
    hold("POOL_WORKSPACE", vendor::POOL_WORKSPACE, static_cast<long>(nvinfer1::MemoryPoolType::kWORKSPACE));
}

void hold_handles() {
    hold_handle<nvinfer1::IBuilder>("IBuilder.mImpl");
    hold_handle<nvinfer1::IBuilderConfig>("IBuilderConfig.mImpl");
    hold_handle<nvinfer1::INetworkDefinition>("INetworkDefinition.mImpl");
    hold_handle<nvinfer1::IOptimizationProfile>("IOptimizationProfile.mImpl");
    hold_handle<nvinfer1::IHostMemory>("IHostMemory.mImpl");
}

}  // namespace

int main() {
    const vendor::Generation* generation = nullptr;
    for (const vendor::Generation& one : vendor::GENERATIONS) {
        if (one.serves(NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR)) generation = &one;
    }
    if (!generation) {
        std::printf("no row serves version %d.%d\n", NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR);
        return 1;
    }
    hold_places(generation->slots);
    hold_targets(generation->slots);
    hold_callbacks();
    hold_data();
    hold_handles();
    std::printf("%s %d.%d: %d compared, %d different\n", generation->name, NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR,
                compared, different);
    return different == 0 ? 0 : 1;
}
