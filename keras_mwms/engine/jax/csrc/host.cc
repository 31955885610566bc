// Collectives on bytes in host memory, for Python to call by ctypes. XLA has no
// part in them: they neither wait for its programs nor keep one waiting.
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "../common/operations.h"
#include "tensor.h"

namespace keras_mwms {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Horovod's Gloo operations count elements in an int.
hvd::Status CheckSize(int64_t bytes) {
  if (bytes <= std::numeric_limits<int>::max()) {
    return hvd::Status::OK();
  }
  return hvd::Status::InvalidArgument(
      "Horovod cannot send " + std::to_string(bytes) +
      " bytes in one piece: the limit is 2**31 - 1.");
}

// Takes the memory that Horovod asks for; the result of an all-gather is the
// one that it sizes itself.
class HostContext : public Context {
public:
  hvd::Status
  AllocateOutput(hvd::TensorShape shape, std::shared_ptr<hvd::Tensor>* tensor,
                 std::shared_ptr<hvd::ReadyEvent>* event = nullptr) override {
    // All ranks know the shape, so all of them refuse.
    auto status = CheckSize(shape.num_elements());
    if (!status.ok()) {
      return status;
    }
    // Never null, not even without bytes.
    result_.reset(std::malloc(shape.num_elements() + 1));
    if (!result_) {
      return hvd::Status::UnknownError(
          "No memory for " + std::to_string(shape.num_elements()) + " bytes.");
    }
    rows_ = shape.dim_size(0);
    *tensor = std::make_shared<BufferTensor>(hvd::HOROVOD_UINT8, shape,
                                             result_.get());
    return hvd::Status::OK();
  }

  int64_t rows() const { return rows_; }
  void* Release() { return result_.release(); }

private:
  std::unique_ptr<void, Free> result_;
  int64_t rows_ = 0;
};

// Lets the calling thread wait for an operation.
class Waiter {
public:
  void Done(const hvd::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    done_ = true;
    wake_.notify_one();
  }

  hvd::Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return done_; });
    return status_;
  }

private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  hvd::Status status_;
};

std::shared_ptr<BufferTensor> Rows(const void* data, int64_t rows,
                                   int64_t width) {
  hvd::TensorShape shape({rows, width});
  return std::make_shared<BufferTensor>(hvd::HOROVOD_UINT8, std::move(shape),
                                        const_cast<void*>(data));
}

// Null when all went well, else a text that the caller frees.
char* Told(const char* operation, const char* name, const hvd::Status& status) {
  if (status.ok()) {
    return nullptr;
  }
  return strdup((std::string("Horovod ") + operation + " of '" + name +
                 "' failed: " + status.reason())
                    .c_str());
}

} // namespace
} // namespace keras_mwms

// Only names with "horovod" in them leave the library (see horovod.lds).
extern "C" {

// Joins the rows of all ranks, in rank order, and returns when they are here.
// Only the number of rows may differ between ranks.
//
// On success the result is null, `*joined` holds `*joined_rows` rows and is
// the caller's to free. Else the result is an error's text, to be freed too.
char* horovod_jax_host_allgather(const char* name, const void* data,
                                 int64_t rows, int64_t width, void** joined,
                                 int64_t* joined_rows) {
  using namespace keras_mwms;
  auto context = std::make_shared<HostContext>();
  auto waiter = std::make_shared<Waiter>();
  hvd::Status status = hvd::CheckInitialized();
  if (status.ok()) {
    status = CheckSize(rows * width);
  }
  if (status.ok()) {
    status = hvd::EnqueueTensorAllgather(context, Rows(data, rows, width),
                                         hvd::ReadyEventList(), name,
                                         CPU_DEVICE_ID,
                                         [waiter](const hvd::Status& status) {
                                           waiter->Done(status);
                                         });
  }
  if (status.ok()) {
    status = waiter->Wait();
  }
  if (status.ok()) {
    *joined_rows = context->rows();
    *joined = context->Release();
  }
  return Told("all-gather", name, status);
}

// Puts the bytes of rank `root` into `data` of all others, as many on each, and
// returns when they are here: null, or an error's text, to be freed.
char* horovod_jax_host_broadcast(const char* name, void* data, int64_t size,
                                 int root) {
  using namespace keras_mwms;
  auto waiter = std::make_shared<Waiter>();
  hvd::Status status = hvd::CheckInitialized();
  if (status.ok()) {
    status = CheckSize(size);
  }
  if (status.ok()) {
    // Horovod reads the input of the root and writes the outputs of others.
    auto tensor = Rows(data, size, 1);
    status = hvd::EnqueueTensorBroadcast(std::make_shared<Context>(), tensor,
                                         tensor, root, hvd::ReadyEventList(),
                                         name, CPU_DEVICE_ID,
                                         [waiter](const hvd::Status& status) {
                                           waiter->Done(status);
                                         });
  }
  if (status.ok()) {
    status = waiter->Wait();
  }
  return Told("broadcast", name, status);
}

void horovod_jax_host_free(void* memory) { std::free(memory); }

} // extern "C"
