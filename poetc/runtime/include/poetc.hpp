/* poetc for C++17: a session that cleans up behind itself, spans, and errors as an enumeration. Header alone, no heap,
 * no exceptions.
 *
 *     alignas(POETC_ALIGN) static std::uint8_t arena[POETC_MODEL_ARENA_BYTES];
 *     auto [session, error] = poetc::Session::open(*POETC_MODEL_DESCRIPTION, arena);
 *     auto [loss, failed] = session.step(images, labels);      arrays or spans, in the order of model.h
 *     if (session.predict(images) == poetc::Error::none)
 *         auto logits = session.output<float>(0);
 *
 * The functions and their codes are those of poetc_session.h.
 */
#ifndef POETC_HPP
#define POETC_HPP

#include "poetc_session.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace poetc
{

/* The codes of poetc.h. A driver's own code keeps its value. */
enum class Error : int {
    none = POETC_OK,
    not_found = POETC_ENOENT,
    io = POETC_EIO,
    busy = POETC_EBUSY,
    invalid = POETC_EINVAL,
    not_a_number = POETC_ENUMBER,
    out_of_range = POETC_ERANGE,
    no_data = POETC_ENODATA,
    exponent = POETC_EEXPONENT,
    corrupt = POETC_ECORRUPT
};

/* A view of elements that somebody else owns. */
template <class T> class Span
{
  public:
    constexpr Span() noexcept = default;
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size)
    {
    }
    template <std::size_t N> constexpr Span(T (&array)[N]) noexcept : data_(array), size_(N)
    {
    }
    /* Of anything with data() and size(): std::array, std::span, a vector. */
    template <class C, class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<C &>().data()), T *>>>
    constexpr Span(C &container) noexcept : data_(container.data()), size_(container.size())
    {
    }

    constexpr T *data() const noexcept
    {
        return data_;
    }
    constexpr std::size_t size() const noexcept
    {
        return size_;
    }
    constexpr std::size_t size_bytes() const noexcept
    {
        return size_ * sizeof(T);
    }
    constexpr T *begin() const noexcept
    {
        return data_;
    }
    constexpr T *end() const noexcept
    {
        return data_ + size_;
    }
    constexpr T &operator[](std::size_t index) const noexcept
    {
        return data_[index];
    }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

template <class T, std::size_t N> Span(T (&)[N]) -> Span<T>;
template <class C> Span(C &) -> Span<std::remove_pointer_t<decltype(std::declval<C &>().data())>>;

/* A value, which is there where `error` is Error::none. */
template <class T> struct Result {
    T value{};
    Error error = Error::none;

    explicit operator bool() const noexcept
    {
        return error == Error::none;
    }
};

enum class Progress { goes_on, complete };

/* A training session. It can be moved between two steps, and not copied: the arena has the state once. A session that
 * was moved away, or never opened, answers Error::invalid. */
class Session
{
  public:
    Session() noexcept = default;
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    Session(Session &&other) noexcept
    {
        take(other);
    }
    Session &operator=(Session &&other) noexcept
    {
        if (this != &other) {
            close();
            take(other);
        }
        return *this;
    }
    ~Session()
    {
        close();
    }

    /* Start from the initial state. `arena` must outlive the session; `store` only where the model has pages. */
    static Result<Session> open(const poetc_model &model, Span<std::uint8_t> arena,
                                const poetc_store *store = nullptr) noexcept
    {
        Result<Session> opened;
        poetc_config config{};

        config.arena = arena.data();
        config.arena_bytes = arena.size();
        if (store != nullptr)
            config.store = *store;
        opened.error = Error(poetc_session_init(&opened.value.session_, &model, &config));
        if (opened)
            opened.value.adopt();
        else
            opened.value.session_ = poetc_session{};
        return opened;
    }

    /* One training step on inputs, then the target: arrays, spans or containers of the right sizes. The loss. */
    template <class... Inputs> Result<float> step(const Inputs &...inputs) noexcept
    {
        Result<float> result;

        result.error = with(
            &poetc_model::train,
            [&](const void *const *all) { return poetc_session_step(&session_, all, &result.value); }, inputs...);
        return result;
    }

    /* The same step in pieces, between the turns of a control loop: see poetc_session.h. */
    template <class... Inputs> Error begin(const Inputs &...inputs) noexcept
    {
        return with(
            &poetc_model::train, [&](const void *const *all) { return poetc_session_begin(&session_, all); },
            inputs...);
    }
    Result<Progress> proceed(std::uint32_t pieces, std::uint32_t microseconds, float &loss) noexcept
    {
        const int code = is_open() ? poetc_session_continue(&session_, pieces, microseconds, &loss) : POETC_EINVAL;

        return {code == POETC_COMPLETE ? Progress::complete : Progress::goes_on,
                code == POETC_COMPLETE ? Error::none : Error(code)};
    }
    Error cancel() noexcept
    {
        return Error(is_open() ? poetc_session_cancel(&session_) : POETC_EINVAL);
    }
    /* The clock of `proceed`: microseconds, which may wrap around. */
    void set_clock(std::uint32_t (*now_us)(void *context), void *context = nullptr) noexcept
    {
        session_.now_us = now_us;
        session_.now_context = context;
    }

    template <class... Inputs> Error predict(const Inputs &...inputs) noexcept
    {
        return with(
            &poetc_model::infer, [&](const void *const *all) { return poetc_session_predict(&session_, all); },
            inputs...);
    }
    template <class... Inputs> Result<float> evaluate(const Inputs &...inputs) noexcept
    {
        Result<float> result;

        result.error = with(
            &poetc_model::evaluate,
            [&](const void *const *all) { return poetc_session_evaluate(&session_, all, &result.value); }, inputs...);
        return result;
    }

    /* Output `index` of the last call, valid until the next one; empty: there is none. */
    template <class T> Span<const T> output(std::uint32_t index) const noexcept
    {
        const void *data = is_open() ? poetc_session_output(&session_, index) : nullptr;

        if (data == nullptr)
            return {};
        return {static_cast<const T *>(data), entry_of_output().outputs[index].size_bytes / sizeof(T)};
    }

    float learning_rate() const noexcept
    {
        return is_open() ? poetc_session_learning_rate(&session_) : 0.0f;
    }
    Error set_learning_rate(float rate) noexcept
    {
        return Error(is_open() ? poetc_session_set_learning_rate(&session_, rate) : POETC_EINVAL);
    }

    /* The state as a stream. `sink`: int(const void *data, std::uint32_t size_bytes); `source`:
     * int(std::uint32_t offset, void *data, std::uint32_t size_bytes). A negative code ends the transfer. */
    template <class Sink> Error save(Sink &&sink) noexcept
    {
        using Callable = std::remove_reference_t<Sink>;
        const auto call = [](void *context, const void *data, std::uint32_t size_bytes) -> int {
            return (*static_cast<Callable *>(context))(data, size_bytes);
        };

        return Error(is_open() ? poetc_session_save(&session_, call, address(sink)) : POETC_EINVAL);
    }
    template <class Source> Error load(std::uint32_t size_bytes, Source &&source) noexcept
    {
        using Callable = std::remove_reference_t<Source>;
        const auto call = [](void *context, std::uint32_t offset, void *data, std::uint32_t size) -> int {
            return (*static_cast<Callable *>(context))(offset, data, size);
        };

        return Error(is_open() ? poetc_session_load(&session_, size_bytes, call, address(source)) : POETC_EINVAL);
    }
    Error checkpoint() noexcept
    {
        return Error(is_open() ? poetc_session_checkpoint(&session_) : POETC_EINVAL);
    }
    Error resume() noexcept
    {
        return Error(is_open() ? poetc_session_resume(&session_) : POETC_EINVAL);
    }

    bool is_open() const noexcept
    {
        return session_.model != nullptr;
    }
    /* Complete steps. */
    std::uint32_t steps() const noexcept
    {
        return session_.runtime.run_count;
    }
    /* The session of C: for a backup, an observer, checkpoints. It moves with this object. */
    poetc_session &c_session() noexcept
    {
        return session_;
    }

  private:
    /* The runtime points into the session, and the session at the slice. */
    void adopt() noexcept
    {
        session_.runtime.config = &session_.config;
        session_.slice = &slice_;
    }
    void take(Session &other) noexcept
    {
        session_ = other.session_;
        slice_ = other.slice_;
        if (is_open())
            adopt();
        other.session_ = poetc_session{};
    }
    void close() noexcept
    {
        if (is_open() && session_.is_begun)
            (void)poetc_session_cancel(&session_);
        session_ = poetc_session{};
    }
    template <class T> static void *address(T &callable) noexcept
    {
        return const_cast<void *>(static_cast<const volatile void *>(&callable));
    }

    const poetc_entry &entry_of_output() const noexcept
    {
        const poetc_model &model = *session_.model;

        return session_.runtime.program == model.infer.program      ? model.infer
               : session_.runtime.program == model.evaluate.program ? model.evaluate
                                                                    : model.train;
    }

    template <class T> static Span<const T> view(Span<T> span) noexcept
    {
        return {span.data(), span.size()};
    }
    template <class T, std::size_t N> static Span<const T> view(const T (&array)[N]) noexcept
    {
        return {array, N};
    }
    template <class C>
    static auto view(const C &container) noexcept -> Span<const std::remove_pointer_t<decltype(container.data())>>
    {
        return {container.data(), container.size()};
    }

    /* `call` on the addresses of the inputs, whose number and sizes must be those of the program. */
    template <class Call, class... Inputs>
    Error with(poetc_entry poetc_model::*which, Call call, const Inputs &...inputs) noexcept
    {
        const void *const all[] = {view(inputs).data()..., nullptr};
        const std::size_t sizes[] = {view(inputs).size_bytes()..., 0};

        if (!is_open())
            return Error::invalid;
        const poetc_entry &entry = session_.model->*which;
        if (entry.program == nullptr || entry.input_count != sizeof...(inputs))
            return Error::invalid;
        for (std::uint32_t i = 0; i < entry.input_count; i++)
            if (sizes[i] != entry.inputs[i].size_bytes)
                return Error::invalid;
        return Error(call(all));
    }

    poetc_session session_{};
    poetc_slice slice_{};
};

} // namespace poetc

#endif
