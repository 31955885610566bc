// XLA FFI handlers that hand their buffers to Horovod. No handler blocks: each
// returns a future that is completed when Horovod is done with the buffers.
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include "../common/operations.h"
#include "call.h"
#include "tensor.h"

namespace keras_mwms {
namespace {

// What one array is sent from and received in.
struct Pair {
  std::shared_ptr<BufferTensor> input;
  std::shared_ptr<BufferTensor> output;
};

ffi::Error Check(const ffi::AnyBuffer& buffer, Use use) {
  if (!WireType(buffer.element_type(), use)) {
    return ffi::Error::InvalidArgument(
        "Horovod cannot send arrays of this type (XLA type number " +
        std::to_string(static_cast<int>(buffer.element_type())) + ").");
  }
  // Horovod's Gloo operations count elements in an int.
  if (buffer.element_count() > std::numeric_limits<int>::max()) {
    return ffi::Error::InvalidArgument(
        "Horovod cannot send an array of " +
        std::to_string(buffer.element_count()) +
        " elements in one piece: the limit is 2**31 - 1.");
  }
  return ffi::Error::Success();
}

ffi::Error Collect(const ffi::RemainingArgs& args,
                   const ffi::RemainingRets& rets, Use use,
                   std::vector<Pair>* pairs) {
  if (args.size() != rets.size()) {
    return ffi::Error::InvalidArgument(
        std::to_string(args.size()) + " arguments, but " +
        std::to_string(rets.size()) + " results.");
  }
  for (size_t i = 0; i < args.size(); ++i) {
    auto arg = args.get<ffi::AnyBuffer>(i);
    if (arg.has_error()) {
      return arg.error();
    }
    auto ret = rets.get<ffi::AnyBuffer>(i);
    if (ret.has_error()) {
      return ret.error();
    }
    if (auto error = Check(*arg, use); error.failure()) {
      return error;
    }
    auto type = *WireType(arg->element_type(), use);
    pairs->push_back({View(*arg, type), View(**ret, type)});
  }
  return ffi::Error::Success();
}

ffi::Future Allreduce(ffi::RemainingArgs args, ffi::RemainingRets rets,
                      std::string_view names) {
  std::vector<Pair> pairs;
  ffi::Error error = Collect(args, rets, Use::kReduce, &pairs);
  if (error.failure()) {
    return Failed(error);
  }
  auto call = Call::Start("all-reduce", names, pairs.size(), &error);
  if (!call) {
    return Failed(error);
  }
  ffi::Future future = call->future();

  std::vector<std::shared_ptr<hvd::OpContext>> contexts;
  std::vector<std::shared_ptr<hvd::Tensor>> inputs;
  std::vector<std::shared_ptr<hvd::Tensor>> outputs;
  std::vector<hvd::ReadyEventList> events(pairs.size());
  std::vector<std::string> tensor_names = call->names();
  std::vector<hvd::StatusCallback> callbacks;
  for (size_t i = 0; i < pairs.size(); ++i) {
    contexts.push_back(std::make_shared<Context>());
    inputs.push_back(std::move(pairs[i].input));
    outputs.push_back(std::move(pairs[i].output));
    callbacks.push_back(
        [call, i](const hvd::Status& status) { call->Done(i, status); });
  }

  hvd::Status status = hvd::CheckInitialized();
  if (status.ok()) {
    status = hvd::EnqueueTensorAllreduces(contexts, inputs, outputs, events,
                                          tensor_names, CPU_DEVICE_ID,
                                          callbacks);
  }
  if (!status.ok()) {
    call->AllDone(status);
  }
  return future;
}

ffi::Future Broadcast(ffi::RemainingArgs args, ffi::RemainingRets rets,
                      std::string_view names, int32_t root_rank) {
  std::vector<Pair> pairs;
  ffi::Error error = Collect(args, rets, Use::kMove, &pairs);
  if (error.failure()) {
    return Failed(error);
  }
  auto call = Call::Start("broadcast", names, pairs.size(), &error);
  if (!call) {
    return Failed(error);
  }
  ffi::Future future = call->future();

  hvd::Status ready = hvd::CheckInitialized();
  for (size_t i = 0; i < pairs.size(); ++i) {
    auto& pair = pairs[i];
    if (ready.ok() && hvd::horovod_rank() == root_rank) {
      // Horovod sends from the input of the root and leaves its output alone.
      std::memcpy(const_cast<void*>(pair.output->data()), pair.input->data(),
                  pair.input->size());
    }
    hvd::Status status = ready;
    if (status.ok()) {
      status = hvd::EnqueueTensorBroadcast(
          std::make_shared<Context>(), pair.input, pair.output, root_rank,
          hvd::ReadyEventList(), call->names()[i], CPU_DEVICE_ID,
          [call, i](const hvd::Status& status) { call->Done(i, status); });
    }
    if (!status.ok()) {
      call->Done(i, status);
    }
  }
  return future;
}

ffi::Future Allgather(ffi::AnyBuffer arg, ffi::Result<ffi::AnyBuffer> ret,
                      std::string_view name) {
  for (const auto& buffer : {arg, *ret}) {
    ffi::Error error = Check(buffer, Use::kMove);
    if (error.failure()) {
      return Failed(error);
    }
  }
  ffi::Error error;
  auto call = Call::Start("all-gather", name, 1, &error);
  if (!call) {
    return Failed(error);
  }
  ffi::Future future = call->future();

  auto type = *WireType(arg.element_type(), Use::kMove);
  auto context = std::make_shared<Context>(View(*ret, type));
  hvd::Status status = hvd::CheckInitialized();
  if (status.ok()) {
    status = hvd::EnqueueTensorAllgather(
        context, View(arg, type), hvd::ReadyEventList(), call->names()[0],
        CPU_DEVICE_ID, [call, context](const hvd::Status& status) {
          call->AllDone(status.ok() ? context->status() : status);
        });
  }
  if (!status.ok()) {
    call->AllDone(status);
  }
  return future;
}

} // namespace
} // namespace keras_mwms

// Only names with "horovod" in them leave the library (see horovod.lds).
XLA_FFI_DEFINE_HANDLER_SYMBOL(horovod_jax_allreduce, keras_mwms::Allreduce,
                              xla::ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("names"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(horovod_jax_broadcast, keras_mwms::Broadcast,
                              xla::ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("names")
                                  .Attr<int32_t>("root_rank"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(horovod_jax_allgather, keras_mwms::Allgather,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name"));
