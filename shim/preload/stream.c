/* stream.c: the captures that are under way, and a cache of what the driver says of streams. */
#include "stream.h"

#include <string.h>

#include "moments.h"

#define MAX_CAPTURES  64
#define KNOWN_STREAMS 512

/* ---- captures ------------------------------------------------------------------------------------- */

static struct gs_capture captures[MAX_CAPTURES];
static struct gs_lock captures_lock;
uint32_t gs_captures, gs_captures_lost;

static uint32_t thread_of(CUstream stream) {
    return stream == CU_STREAM_PER_THREAD ? (uint32_t)GS_CALL(SYS_gettid) : 0;
}

void gs_capture_put_back(struct gs_capture capture) {
    bool added = false;
    gs_lock(&captures_lock);
    for (int i = 0; i < MAX_CAPTURES && !added; i++) {
        if (captures[i].stream != NULL)
            continue;
        captures[i] = capture;
        added = true;
    }
    __atomic_fetch_add(added ? &gs_captures : &gs_captures_lost, 1, __ATOMIC_RELEASE);
    gs_unlock(&captures_lock);
}

void gs_capture_add(CUstream stream) {
    struct gs_capture capture = {.stream = stream, .thread = thread_of(stream)};
    struct gs_place place = {0};
    CUcontext context = NULL;
    CUresult asked = CUDA_SUCCESS;
    if (stream == CU_STREAM_PER_THREAD)
        asked = gs_driver.cuCtxGetCurrent(&context);
    else
        GS_RELAXED(asked = gs_driver.cuStreamGetCtx(stream, &context));
    if (asked == CUDA_SUCCESS && gs_context_find(context, &place))
        capture.context = place.context;
    gs_capture_put_back(capture);
}

/* Under the lock. */
static void drop(struct gs_capture *capture) {
    *capture = (struct gs_capture){0};
    __atomic_fetch_sub(&gs_captures, 1, __ATOMIC_RELEASE);
}

struct gs_capture gs_capture_take(CUstream stream) {
    struct gs_capture taken = {0};
    uint32_t thread = thread_of(stream);
    gs_lock(&captures_lock);
    for (int i = 0; i < MAX_CAPTURES && taken.stream == NULL; i++) {
        if (captures[i].stream != stream || captures[i].thread != thread)
            continue;
        taken = captures[i];
        drop(&captures[i]);
    }
    gs_unlock(&captures_lock);
    return taken;
}

/* ---- the GPU of a stream ---------------------------------------------------------------------------- */

/* Found without a lock: a place is the GPU's number + 1 while stream and place belong together. */
static struct known_stream {
    CUstream stream;
    uint32_t place;
} streams[KNOWN_STREAMS];

static struct gs_lock streams_lock;

static struct known_stream *slot_of(CUstream stream) {
    return &streams[((uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15ull >> 40) % KNOWN_STREAMS];
}

static void know(struct known_stream *slot, CUstream stream, uint32_t place) {
    gs_lock(&streams_lock);
    __atomic_store_n(&slot->place, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->stream, stream, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->place, place, __ATOMIC_SEQ_CST);
    gs_unlock(&streams_lock);
}

struct gs_gpu *gs_stream_gpu(CUstream stream) {
    struct known_stream *slot = slot_of(stream);
    struct gs_place place = {0};
    CUcontext context = NULL;
    CUresult result;
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return NULL;
    uint32_t known = __atomic_load_n(&slot->place, __ATOMIC_ACQUIRE);
    if (known != 0 && __atomic_load_n(&slot->stream, __ATOMIC_ACQUIRE) == stream &&
        __atomic_load_n(&slot->place, __ATOMIC_RELAXED) == known)
        return gs_gpu_numbered((uint8_t)(known - 1));
    GS_RELAXED(result = gs_driver.cuStreamGetCtx(stream, &context));
    if (result != CUDA_SUCCESS || !gs_context_find(context, &place))
        return NULL;
    know(slot, stream, gs_gpu_number(place.gpu) + 1u);
    return place.gpu;
}

static CUstream known_at(const struct known_stream *slot) {
    return __atomic_load_n(&slot->stream, __ATOMIC_ACQUIRE);
}

void gs_stream_gone(CUstream stream) {
    struct known_stream *slot = slot_of(stream);
    if (known_at(slot) == stream)
        know(slot, NULL, 0);
}

void gs_streams_unknown(void) {
    for (struct known_stream *slot = streams; slot < streams + KNOWN_STREAMS; slot++)
        if (known_at(slot) != NULL)
            know(slot, NULL, 0);
}

void gs_streams_context_gone(uint32_t context) {
    gs_streams_unknown();
    if (!gs_capture_is_underway())
        return;
    gs_lock(&captures_lock);
    for (int i = 0; i < MAX_CAPTURES; i++)
        if (captures[i].stream != NULL && captures[i].context == context)
            drop(&captures[i]);
    gs_unlock(&captures_lock);
}

GS_AT(fork) {
    memset(captures, 0, sizeof captures);
    memset(streams, 0, sizeof streams);
    gs_captures = gs_captures_lost = 0;
    captures_lock = streams_lock = (struct gs_lock){0};
}
