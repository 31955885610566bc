#include "call.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <unordered_set>
#include <utility>

namespace keras_mwms {
namespace {

// The names of all calls in flight.
class Names {
public:
  // Takes all of `names`, or none and returns the first that is in use.
  const std::string* Take(const std::vector<std::string>& names) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < names.size(); ++i) {
      if (!taken_.insert(names[i]).second) {
        for (size_t j = 0; j < i; ++j) {
          taken_.erase(names[j]);
        }
        return &names[i];
      }
    }
    return nullptr;
  }

  void Release(const std::vector<std::string>& names) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& name : names) {
      taken_.erase(name);
    }
  }

private:
  std::mutex mutex_;
  std::unordered_set<std::string> taken_;
};

// Threads that complete futures. XLA computes what depended on a future in the
// thread that completes it. Horovod's own thread must not be that thread: it
// would communicate no more meanwhile, and at shutdown it holds a lock that
// the next operation needs.
class Completer {
public:
  void Post(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
    if (idle_ < work_.size()) {
      std::thread(&Completer::Run, this).detach();
      ++idle_;
    }
    wake_.notify_one();
  }

private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return !work_.empty(); });
      auto work = std::move(work_.front());
      work_.pop_front();
      --idle_;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  size_t idle_ = 0;
};

// Never destroyed: their threads live until the process ends.
Names& TheNames() {
  static auto* names = new Names;
  return *names;
}

Completer& TheCompleter() {
  static auto* completer = new Completer;
  return *completer;
}

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    size_t end = text.find('\n');
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(end + 1);
  }
}

ffi::ErrorCode Code(const hvd::Status& status) {
  switch (status.type()) {
  case hvd::PRECONDITION_ERROR:
    return ffi::ErrorCode::kFailedPrecondition;
  case hvd::INVALID_ARGUMENT:
    return ffi::ErrorCode::kInvalidArgument;
  case hvd::ABORTED:
    return ffi::ErrorCode::kAborted;
  default:
    return ffi::ErrorCode::kUnknown;
  }
}

} // namespace

ffi::Future Failed(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

Call::Call(const char* operation, std::vector<std::string> names)
    : operation_(operation), names_(std::move(names)),
      pending_(names_.size()) {}

std::shared_ptr<Call> Call::Start(const char* operation,
                                  std::string_view names, size_t count,
                                  ffi::Error* error) {
  std::shared_ptr<Call> call(new Call(operation, Split(names)));
  if (call->names_.size() != count) {
    *error = ffi::Error::InvalidArgument(
        "Horovod " + call->operation_ + ": " +
        std::to_string(call->names_.size()) + " names for " +
        std::to_string(count) + " arrays.");
    return nullptr;
  }
  if (const std::string* taken = TheNames().Take(call->names_)) {
    *error = ffi::Error::InvalidArgument(
        "Horovod " + call->operation_ + ": the name '" + *taken +
        "' is in flight already. Give every array a name of its own.");
    return nullptr;
  }
  return call;
}

void Call::End(size_t first, size_t count, const hvd::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!status.ok() && error_.success()) {
      std::string more =
          count > 1 ? " and " + std::to_string(count - 1) + " more" : "";
      error_ = ffi::Error(Code(status), "Horovod " + operation_ + " of '" +
                                            names_[first] + "'" + more +
                                            " failed: " + status.reason());
    }
    pending_ -= count;
    if (pending_ > 0) {
      return;
    }
  }
  TheNames().Release(names_);
  TheCompleter().Post([promise = promise_, error = error_]() mutable {
    if (error.success()) {
      promise.SetAvailable();
    } else {
      promise.SetError(std::move(error));
    }
  });
}

} // namespace keras_mwms
