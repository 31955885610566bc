// XLA's buffers, in the words of Horovod.
#ifndef KERAS_MWMS_JAX_TENSOR_H
#define KERAS_MWMS_JAX_TENSOR_H

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include "../common/common.h"

namespace keras_mwms {

namespace ffi = xla::ffi;
namespace hvd = horovod::common;

// What is done to the elements decides which types can be sent.
enum class Use {
  kReduce, // they are added
  kMove,   // they are only copied
};

// The type under which Horovod sends elements of `type`, or nothing when it
// cannot. Horovod 0.28 has no bfloat16 and no unsigned type above 16 bits:
// these may move as another type of their width, but not be added.
std::optional<hvd::DataType> WireType(ffi::DataType type, Use use);

// A view of memory that somebody else owns.
class BufferTensor : public hvd::Tensor {
public:
  BufferTensor(hvd::DataType type, hvd::TensorShape shape, void* data);

  const hvd::DataType dtype() const override { return type_; }
  const hvd::TensorShape shape() const override { return shape_; }
  const void* data() const override { return data_; }
  int64_t size() const override;

private:
  hvd::DataType type_;
  hvd::TensorShape shape_;
  void* data_;
};

std::shared_ptr<BufferTensor> View(const ffi::AnyBuffer& buffer,
                                   hvd::DataType type);

// Where Horovod gets memory for one operation. The result of an all-gather is
// the one output that Horovod sizes itself; it goes into XLA's buffer.
class Context : public hvd::OpContext {
public:
  Context() = default;
  explicit Context(std::shared_ptr<BufferTensor> output);

  hvd::Status
  AllocatePersistent(int64_t size,
                     std::shared_ptr<hvd::PersistentBuffer>* buffer) override;
  hvd::Status
  AllocateOutput(hvd::TensorShape shape, std::shared_ptr<hvd::Tensor>* tensor,
                 std::shared_ptr<hvd::ReadyEvent>* event = nullptr) override;
  hvd::Status AllocateZeros(int64_t num_elements, hvd::DataType dtype,
                            std::shared_ptr<hvd::Tensor>* tensor) override;
  // Names the fusion buffer only: no other binding is in this library.
  hvd::Framework framework() const override { return hvd::Framework::XLA; }

  // Not OK if the output that Horovod asked for was not the one XLA expects.
  const hvd::Status& status() const { return status_; }

private:
  std::shared_ptr<BufferTensor> output_;
  std::vector<char> spare_;
  hvd::Status status_ = hvd::Status::OK();
};

} // namespace keras_mwms

#endif // KERAS_MWMS_JAX_TENSOR_H
