// One call of a handler: from its buffers to the future that XLA waits for.
#ifndef KERAS_MWMS_JAX_CALL_H
#define KERAS_MWMS_JAX_CALL_H

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include "../common/common.h"

namespace keras_mwms {

namespace ffi = xla::ffi;
namespace hvd = horovod::common;

// A future that has failed already.
ffi::Future Failed(ffi::Error error);

// Counts the operations of one call and completes its future after the last,
// with the first error if there was one.
//
// The call holds its names while it is in flight. Horovod refuses a name that
// is in use as well, but only after it has taken the tensors before it in the
// same group, and would write into them after XLA has freed them.
class Call {
public:
  // Starts a call of `operation` with names separated by newlines.
  // A null pointer means that it failed; `error` says why.
  static std::shared_ptr<Call> Start(const char* operation,
                                     std::string_view names, size_t count,
                                     ffi::Error* error);

  const std::vector<std::string>& names() const { return names_; }
  ffi::Future future() const { return ffi::Future(promise_); }

  // Reports the end of the operation of `names()[index]`, from any thread.
  void Done(size_t index, const hvd::Status& status) { End(index, 1, status); }
  // Reports the end of all operations at once.
  void AllDone(const hvd::Status& status) { End(0, names_.size(), status); }

private:
  Call(const char* operation, std::vector<std::string> names);
  void End(size_t first, size_t count, const hvd::Status& status);

  const std::string operation_;
  const std::vector<std::string> names_;
  ffi::Promise promise_;
  std::mutex mutex_;
  size_t pending_;
  ffi::Error error_;
};

} // namespace keras_mwms

#endif // KERAS_MWMS_JAX_CALL_H
