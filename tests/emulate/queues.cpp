/* Streams and events on one core of a CPU. Queued work runs only when something must wait for it; what
 * else runs by then, and in which order of streams, is random. So a host that reads too early, a stream
 * that misses an event, and memory that is reused too soon all show. A captured graph is a list that is
 * queued at each launch.
 */
#include <cuda_runtime_api.h>
#include <stdint.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <machine_emulated.h>

namespace {

/* Threads call one at a time. Calls call each other. */
std::recursive_mutex calls;
#define ONE_AT_A_TIME std::lock_guard<std::recursive_mutex> lock(calls)

/* A recorded event: whether the stream has reached it. */
typedef std::shared_ptr<bool> moment;

/* A queued call; in a recording also a wait for the event's last record before the launch. */
struct item {
    std::function<void()> work;
    moment wait, record;
    std::shared_ptr<moment> last;
};
typedef std::deque<item> list;

} // namespace

struct emulated_event {
    std::shared_ptr<moment> last = std::make_shared<moment>(); /* NULL before the first */
};
struct emulated_stream {
    list items;
    list *recording = nullptr;
};
struct emulated_graph {
    list items;
};
struct emulated_recording {
    list items;
};

namespace {

std::vector<emulated_stream *> streams;
std::map<uintptr_t, size_t> ours; /* memory from here, which copies read and write late */

bool ready(const item &i) { return !i.wait || *i.wait; }

/* The stream's first item, which is ready. */
void do_first(emulated_stream *s) {
    item i = std::move(s->items.front());
    s->items.pop_front();
    if (i.work) i.work();
    if (i.record) *i.record = true;
}

void until(moment m);

void one_more(emulated_stream *s) {
    if (emulate_draw() % 4 == 0) { /* another one gets ahead */
        emulated_stream *other = streams[emulate_draw() % streams.size()];
        if (!other->items.empty() && ready(other->items.front())) do_first(other);
    }
    if (s->items.empty()) return;
    if (ready(s->items.front()))
        do_first(s);
    else
        until(s->items.front().wait);
}

void until(moment m) {
    while (m && !*m) {
        emulated_stream *from = nullptr;
        for (emulated_stream *s : streams)
            for (const item &i : s->items)
                if (i.record == m) from = s;
        if (!from) emulate_fault("a stream waits for an event that never comes");
        one_more(from);
    }
}

void finish(emulated_stream *s) {
    while (!s->items.empty()) one_more(s);
}
void finish_all() {
    for (size_t i = 0; i < streams.size(); i++) finish(streams[i]);
}

void add(emulated_stream *s, item i) {
    (s->recording ? *s->recording : s->items).push_back(std::move(i));
}

bool is_ours(const void *p) {
    auto after = ours.upper_bound((uintptr_t)p);
    if (after == ours.begin()) return false;
    auto range = std::prev(after);
    return (uintptr_t)p < range->first + range->second;
}

cudaError_t allocate(void **p, size_t bytes) {
    if (posix_memalign(p, 256, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
    memset(*p, 0xff, bytes); /* NaN in every type */
    ours[(uintptr_t)*p] = bytes ? bytes : 1;
    return cudaSuccess;
}
cudaError_t release(void *p) {
    finish_all();
    ours.erase((uintptr_t)p);
    free(p);
    return cudaSuccess;
}

} // namespace

void emulate_queue(cudaStream_t s, std::function<void()> work) {
    ONE_AT_A_TIME;
    add(s, { std::move(work), nullptr, nullptr, nullptr });
}
void emulate_call(cudaStream_t s, void (*call)(const void *bytes), const void *bytes, size_t n) {
    ONE_AT_A_TIME;
    std::vector<char> own((const char *)bytes, (const char *)bytes + n);
    emulate_queue(s, [=] { call(own.data()); });
}

/* ---- memory: what is not from here is pageable, and copied before the call returns --------------- */
cudaError_t cudaMalloc(void **p, size_t bytes) {
    ONE_AT_A_TIME;
    return allocate(p, bytes);
}
cudaError_t cudaFree(void *p) {
    ONE_AT_A_TIME;
    return release(p);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    ONE_AT_A_TIME;
    return allocate(p, bytes);
}
cudaError_t cudaFreeHost(void *p) {
    ONE_AT_A_TIME;
    return release(p);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t s) {
    ONE_AT_A_TIME;
    bool late = is_ours(to) && is_ours(from);
    if (!late && s->recording) emulate_fault("pageable memory in a recording");
    emulate_queue(s, [=] { memcpy(to, from, bytes); });
    if (!late) finish(s);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    ONE_AT_A_TIME;
    emulate_queue(s, [=] { memset(p, value, bytes); });
    return cudaSuccess;
}

/* ---- streams and events -------------------------------------------------------------------------- */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    ONE_AT_A_TIME;
    streams.push_back(*s = new emulated_stream);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int at) {
    ONE_AT_A_TIME;
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    ONE_AT_A_TIME;
    finish(s);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s) streams.erase(streams.begin() + (long)i);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    ONE_AT_A_TIME;
    if (s->recording) emulate_fault("a recording waits");
    finish(s);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    ONE_AT_A_TIME;
    *e = new emulated_event;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    ONE_AT_A_TIME;
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    ONE_AT_A_TIME;
    if (s->recording) emulate_fault("an event in a recording");
    *e->last = std::make_shared<bool>(false);
    add(s, { nullptr, nullptr, *e->last, nullptr });
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    ONE_AT_A_TIME;
    if (s->recording && flags != cudaEventWaitExternal)
        emulate_fault("a recording waits for others");
    add(s, { nullptr, *e->last, nullptr, s->recording ? e->last : nullptr });
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    ONE_AT_A_TIME;
    until(*e->last);
    return cudaSuccess;
}

/* ---- recording ----------------------------------------------------------------------------------- */
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *now) {
    ONE_AT_A_TIME;
    *now = s->recording ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode) {
    ONE_AT_A_TIME;
    s->recording = new list;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    ONE_AT_A_TIME;
    *g = new emulated_graph{ std::move(*s->recording) };
    delete s->recording;
    s->recording = nullptr;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t g, int flags) {
    ONE_AT_A_TIME;
    *made = new emulated_recording{ g->items };
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    ONE_AT_A_TIME;
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t s) {
    ONE_AT_A_TIME;
    for (item i : made->items) {
        if (i.last) i.wait = *i.last;
        add(s, i);
    }
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) {
    ONE_AT_A_TIME;
    delete made;
    return cudaSuccess;
}
