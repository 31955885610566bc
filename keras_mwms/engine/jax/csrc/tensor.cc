#include "tensor.h"

#include <utility>

namespace keras_mwms {
namespace {

class Memory : public hvd::PersistentBuffer {
public:
  explicit Memory(int64_t size) : bytes_(size) {}
  const void*
  AccessData(std::shared_ptr<hvd::OpContext> context) const override {
    return bytes_.data();
  }

private:
  std::vector<char> bytes_;
};

} // namespace

std::optional<hvd::DataType> WireType(ffi::DataType type, Use use) {
  switch (type) {
  case ffi::DataType::S8:
    return hvd::HOROVOD_INT8;
  case ffi::DataType::S16:
    return hvd::HOROVOD_INT16;
  case ffi::DataType::S32:
    return hvd::HOROVOD_INT32;
  case ffi::DataType::S64:
    return hvd::HOROVOD_INT64;
  case ffi::DataType::U8:
    return hvd::HOROVOD_UINT8;
  case ffi::DataType::U16:
    return hvd::HOROVOD_UINT16;
  case ffi::DataType::F16:
    return hvd::HOROVOD_FLOAT16;
  case ffi::DataType::F32:
    return hvd::HOROVOD_FLOAT32;
  case ffi::DataType::F64:
    return hvd::HOROVOD_FLOAT64;
  default:
    break;
  }
  if (use == Use::kReduce) {
    return std::nullopt;
  }
  switch (type) {
  case ffi::DataType::PRED:
    return hvd::HOROVOD_BOOL;
  case ffi::DataType::BF16:
    return hvd::HOROVOD_UINT16;
  case ffi::DataType::U32:
    return hvd::HOROVOD_INT32;
  case ffi::DataType::U64:
  case ffi::DataType::C64:
    return hvd::HOROVOD_INT64;
  default:
    return std::nullopt;
  }
}

BufferTensor::BufferTensor(hvd::DataType type, hvd::TensorShape shape,
                           void* data)
    : type_(type), shape_(std::move(shape)), data_(data) {}

int64_t BufferTensor::size() const {
  return shape_.num_elements() *
         static_cast<int64_t>(hvd::DataType_Size(type_));
}

std::shared_ptr<BufferTensor> View(const ffi::AnyBuffer& buffer,
                                   hvd::DataType type) {
  auto dims = buffer.dimensions();
  hvd::TensorShape shape(std::vector<int64_t>(dims.begin(), dims.end()));
  return std::make_shared<BufferTensor>(type, std::move(shape),
                                        buffer.untyped_data());
}

Context::Context(std::shared_ptr<BufferTensor> output)
    : output_(std::move(output)) {}

hvd::Status
Context::AllocatePersistent(int64_t size,
                            std::shared_ptr<hvd::PersistentBuffer>* buffer) {
  *buffer = std::make_shared<Memory>(size);
  return hvd::Status::OK();
}

hvd::Status Context::AllocateOutput(hvd::TensorShape shape,
                                    std::shared_ptr<hvd::Tensor>* tensor,
                                    std::shared_ptr<hvd::ReadyEvent>* event) {
  if (shape == output_->shape()) {
    *tensor = output_;
    return hvd::Status::OK();
  }
  // Refusing here would leave the other ranks alone in the collective until
  // their timeout: take part, and report afterwards.
  spare_.resize(shape.num_elements() * hvd::DataType_Size(output_->dtype()));
  *tensor = std::make_shared<BufferTensor>(output_->dtype(), shape,
                                           spare_.data());
  status_ = hvd::Status::InvalidArgument(
      "The ranks' arrays give a result of shape " + shape.DebugString() +
      ", but this rank was compiled for " + output_->shape().DebugString() +
      ".");
  return hvd::Status::OK();
}

hvd::Status Context::AllocateZeros(int64_t num_elements, hvd::DataType dtype,
                                   std::shared_ptr<hvd::Tensor>* tensor) {
  return hvd::Status::PreconditionError(
      "The JAX binding has no join operation.");
}

} // namespace keras_mwms
