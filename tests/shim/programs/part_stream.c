/* part_stream.c: the captures that are under way and the GPUs of streams, against plain lists. */
#define _GNU_SOURCE /* gettid */
#include "part_bank.h"

#include <pthread.h>

/* After each store another thread looks. */
static void look_beside(void);

/* And before so many loads it does something. */
static int loads_until;
static void (*does)(void);

static void count_load(void) {
    void (*now)(void) = does;
    if (now == NULL || loads_until-- != 0)
        return;
    does = NULL;
    now();
}

#define __atomic_load_n(...)  (count_load(), __atomic_load_n(__VA_ARGS__))
#define __atomic_store_n(...) (__atomic_store_n(__VA_ARGS__), look_beside())
#include "stream.c"

/* While this stream is known at this slot it is known with this place. */
static struct {
    const struct known_stream *slot;
    CUstream stream;
    uint32_t place;
} beside;

static void look_beside(void) {
    if (beside.slot != NULL && beside.slot->place != 0 && beside.slot->stream == beside.stream)
        REQUIRE(beside.slot->place == beside.place);
}

#define STREAMS 12

static int context_of_stream[STREAMS + 8]; /* 0: the driver does not know the stream */
static uint32_t questions;
static CUcontext current_handle;

static CUstream stream_of(int i) {
    return (CUstream)(uintptr_t)(0x1000 + i * 0x40);
}

static CUresult stream_context(CUstream stream, CUcontext *context) {
    REQUIRE(relaxed % 2 == 1);
    questions++;
    if (stream == CU_STREAM_LEGACY) {
        *context = (CUcontext)(uintptr_t)3;
        return CUDA_SUCCESS;
    }
    int known = context_of_stream[((uintptr_t)stream - 0x1000) / 0x40];
    *context = (CUcontext)(uintptr_t)(known != 0 ? known : 1);
    return known != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult current_context(CUcontext *context) {
    *context = current_handle;
    return CUDA_SUCCESS;
}

/* Contexts 1 to 4 are known, numbered 11 to 14, on GPU 0 or 1. */
bool gs_context_find(CUcontext context, struct gs_place *place) {
    uintptr_t at = (uintptr_t)context;
    if (at < 1 || at > 4)
        return false;
    *place = (struct gs_place){&gs_gpus[at % 2], (uint32_t)at + 10};
    return true;
}

bool gs_place_context(struct gs_place *place, CUcontext context) {
    (void)place, (void)context;
    return false;
}

bool gs_place_attach(struct gs_gpu *gpu) {
    (void)gpu;
    return false;
}

static CUstreamCaptureStatus status_says;
static CUresult capture_says;
static uint32_t asked;

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    asked++;
    *status = status_says;
    return capture_says;
}

static void a_capture(void) {
    REQUIRE(!gs_capture_is_underway() && !gs_stream_is_captured(is_capturing, stream_of(1)) && asked == 0);
    context_of_stream[1] = 2;
    gs_capture_add(stream_of(1));
    REQUIRE(gs_captures == 1 && gs_capture_is_underway());
    REQUIRE(!gs_stream_is_captured(is_capturing, stream_of(2)) && asked == 1); /* the driver knows who has joined */
    status_says = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    REQUIRE(gs_stream_is_captured(is_capturing, stream_of(2)));
    status_says = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_says = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    REQUIRE(gs_stream_is_captured(is_capturing, stream_of(2)));
    capture_says = CUDA_SUCCESS;
    REQUIRE(gs_capture_take(stream_of(2)).stream == NULL && gs_captures == 1);
    struct gs_capture taken = gs_capture_take(stream_of(1));
    REQUIRE(taken.stream == stream_of(1) && taken.context == 12 && taken.thread == 0 && gs_captures == 0);
    REQUIRE(gs_capture_take(stream_of(1)).stream == NULL && gs_captures == 0);
    gs_capture_put_back(taken);
    REQUIRE(gs_captures == 1 && gs_capture_take(stream_of(1)).context == 12);
    gs_capture_add(stream_of(3)); /* of no context that is known */
    REQUIRE(gs_capture_take(stream_of(3)).context == 0);
    current_handle = (CUcontext)(uintptr_t)4;
    gs_capture_add(CU_STREAM_LEGACY);
    REQUIRE(gs_capture_take(CU_STREAM_LEGACY).context == 13);
}

static void *of_another_thread(void *result) {
    *(struct gs_capture *)result = gs_capture_take(CU_STREAM_PER_THREAD);
    return NULL;
}

/* The per-thread stream is another one in each thread; its context is the thread's current one. */
static void own_streams(void) {
    struct gs_capture found = {.context = 9};
    pthread_t thread;
    uint32_t before = questions;
    current_handle = (CUcontext)(uintptr_t)4;
    gs_capture_add(CU_STREAM_PER_THREAD);
    REQUIRE(questions == before);
    pthread_create(&thread, NULL, of_another_thread, &found);
    pthread_join(thread, NULL);
    REQUIRE(found.stream == NULL && gs_captures == 1);
    found = gs_capture_take(CU_STREAM_PER_THREAD);
    REQUIRE(found.stream == CU_STREAM_PER_THREAD && found.context == 14 && found.thread == (uint32_t)gettid());
}

/* Who begins a capture of a stream that is captured already fails, and takes nothing from the first one. */
static void once_more(void) {
    gs_capture_add(stream_of(1));
    gs_capture_add(stream_of(1));
    REQUIRE(gs_captures == 2 && gs_capture_take(stream_of(1)).stream == stream_of(1));
    REQUIRE(gs_captures == 1 && gs_capture_take(stream_of(1)).stream == stream_of(1) && gs_captures == 0);
}

static void another_is_known(void) {
    know(slot_of(stream_of(3)), stream_of(3), 2);
}

/* Two streams share a place in the cache: who looks while one follows the other finds neither's GPU for the other. */
static void one_after_the_other(void) {
    know(&streams[0], stream_of(1), 1);
    beside.slot = &streams[0];
    beside.stream = stream_of(2);
    beside.place = 2;
    know(&streams[0], stream_of(2), 2);
    REQUIRE(streams[0].place == 2);
    beside.slot = NULL;
    struct known_stream *slot = slot_of(stream_of(3));
    context_of_stream[3] = 1; /* on GPU 1 */
    know(slot, stream_of(5), 1);
    REQUIRE(gs_stream_gpu(stream_of(3)) == &gs_gpus[1]); /* what is there is another's */
    *slot = (struct known_stream){.stream = stream_of(3), .place = 0};
    REQUIRE(gs_stream_gpu(stream_of(3)) == &gs_gpus[1]); /* what is there is not whole yet */
    know(slot, stream_of(5), 1);
    loads_until = 1;
    does = another_is_known;
    REQUIRE(gs_stream_gpu(stream_of(3)) == &gs_gpus[1] && does == NULL);
    gs_stream_gone(stream_of(3));
    REQUIRE(slot->stream == NULL && slot->place == 0);
    know(&streams[0], NULL, 0);
}

/* A context that ends takes its captures along, and no others. */
static void contexts_end(void) {
    for (int i = 1; i <= 4; i++) {
        context_of_stream[i] = i % 2 + 1;
        gs_capture_add(stream_of(i));
    }
    gs_streams_context_gone(12);
    REQUIRE(gs_captures == 2 && gs_capture_take(stream_of(1)).stream == NULL);
    REQUIRE(gs_capture_take(stream_of(2)).context == 11 && gs_capture_take(stream_of(4)).context == 11);
    gs_streams_context_gone(0); /* an empty place is of no context */
    REQUIRE(gs_captures == 0);
    gs_capture_add(stream_of(1));
    gs_streams_context_gone(0);
    REQUIRE(gs_captures == 1);
    gs_capture_take(stream_of(1));
}

/* There is room for so many; of more it is known that there are some, so that streams are asked one by one. */
static void too_many(void) {
    for (int i = 0; i < MAX_CAPTURES + 2; i++)
        gs_capture_put_back((struct gs_capture){.stream = (CUstream)(uintptr_t)(0x100000 + i)});
    REQUIRE(gs_captures == MAX_CAPTURES && gs_captures_lost == 2);
    for (int i = 0; i < MAX_CAPTURES; i++)
        REQUIRE(gs_capture_take((CUstream)(uintptr_t)(0x100000 + i)).stream != NULL);
    asked = 0;
    REQUIRE(gs_captures == 0 && !gs_stream_is_captured(is_capturing, stream_of(1)) && asked == 1);
    gs_capture_add(stream_of(1));
    captures_lock.held = streams_lock.held = 1;
    at_fork();
    REQUIRE(gs_captures == 0 && gs_captures_lost == 0 && captures_lock.held == 0 && streams_lock.held == 0);
    REQUIRE(gs_capture_take(stream_of(1)).stream == NULL);
    gs_capture_add(stream_of(1)); /* the child has room for its own */
    REQUIRE(gs_captures == 1 && gs_capture_take(stream_of(1)).stream == stream_of(1));
}

/* A stream's GPU is asked for once, until something may have changed it. */
static void gpus_of_streams(void) {
    int model[STREAMS] = {0}; /* the context that a stream has; 0: none that is known */
    CUstream special[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    questions = 0;
    for (int i = 0; i < 3; i++)
        REQUIRE(gs_stream_gpu(special[i]) == NULL && questions == 0);
    context_of_stream[1] = 2;
    context_of_stream[2] = 3;
    context_of_stream[3] = 9; /* the driver knows it, we do not */
    context_of_stream[4] = 0;
    for (int round = 0; round < 3; round++) {
        REQUIRE(gs_stream_gpu(stream_of(1)) == &gs_gpus[0] && gs_stream_gpu(stream_of(2)) == &gs_gpus[1]);
        REQUIRE(questions == 2);
    }
    REQUIRE(gs_stream_gpu(stream_of(3)) == NULL && gs_stream_gpu(stream_of(4)) == NULL && questions == 4);
    gs_stream_gone(stream_of(1));
    REQUIRE(gs_stream_gpu(stream_of(2)) == &gs_gpus[1] && questions == 4);
    REQUIRE(gs_stream_gpu(stream_of(1)) == &gs_gpus[0] && questions == 5);
    gs_streams_unknown();
    context_of_stream[1] = 1;
    REQUIRE(gs_stream_gpu(stream_of(1)) == &gs_gpus[1] && gs_stream_gpu(stream_of(2)) == &gs_gpus[1] && questions == 7);
    gs_streams_context_gone(11);
    REQUIRE(gs_stream_gpu(stream_of(1)) == &gs_gpus[1] && questions == 8);
    uintptr_t same = 0x20000; /* another stream with the same place in the cache */
    while (slot_of((CUstream)same) != slot_of(stream_of(1)))
        same += 8;
    gs_stream_gone((CUstream)same);
    REQUIRE(gs_stream_gpu(stream_of(1)) == &gs_gpus[1] && questions == 8);
    for (int i = 0; i < KNOWN_STREAMS; i++) { /* all places of it are forgotten */
        know(&streams[i], (CUstream)(uintptr_t)5, 1);
        REQUIRE(streams[i].place == 1);
    }
    gs_streams_unknown();
    for (int i = 0; i < KNOWN_STREAMS; i++)
        REQUIRE(streams[i].stream == NULL && streams[i].place == 0);
    for (int round = 0; round < 4000; round++) {
        int i = (int)any(STREAMS);
        if (any(4) == 0) { /* it is destroyed, and its handle is another's */
            gs_stream_gone(stream_of(i));
            model[i] = context_of_stream[i] = (int)any(6);
        }
        struct gs_gpu *gpu = gs_stream_gpu(stream_of(i));
        REQUIRE(round < 100 || model[i] == 0 || gpu == (model[i] < 5 ? &gs_gpus[model[i] % 2] : NULL));
    }
    know(&streams[0], stream_of(1), 1);
    at_fork();
    REQUIRE(streams[0].stream == NULL && streams[0].place == 0);
}

int main(void) {
    open_bank();
    gs_driver.cuStreamGetCtx = stream_context;
    gs_driver.cuCtxGetCurrent = current_context;
    a_capture();
    own_streams();
    once_more();
    one_after_the_other();
    contexts_end();
    too_many();
    gpus_of_streams();
    return good();
}
