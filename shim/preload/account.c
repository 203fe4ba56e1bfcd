/* account.c: the slow path of an allocation, and the credit of a process without a daemon.
 *
 * A failure of gpushare may cost a limit, never a run. Without a daemon, the limit from the environment holds for this
 * process alone, which is said once. If the daemon has gone, the credit stays, and more is refused. If the daemon
 * refuses, the program gets out-of-memory, the driver's own code, which frameworks can handle.
 */
#include "account.h"

#include <string.h>

#include "moments.h"
#include "client.h"
#include "gate.h"
#include "message.h"
#include "options.h"
#include "system.h"

#define MARGIN_MS    4000 /* on top of the daemon's patience: the daemon decides, not this process */
#define EAGER_ROUNDS 16   /* so many answers in a row may bring nothing before we pause between two asks */
#define PAUSE_US     1000 /* that pause */

void (*gs_account_squeeze[GS_SQUEEZERS])(struct gs_gpu *gpu, bool all);

/* Start the trimming thread if the daemon may ask this process for memory: its job may borrow on the GPU, or gives
 * memory back when it is idle. Called when the GPU is attached and when credit is asked for. */
static void notice_borrower(const struct gs_gpu *gpu) {
    const struct gs_line *line = gpu->line;
    if (gpu->own)
        return;
    if (__atomic_load_n(&line->limit, __ATOMIC_RELAXED) > __atomic_load_n(&line->request, __ATOMIC_RELAXED) ||
        __atomic_load_n(&gs_client_page()->trim_ms, __ATOMIC_RELAXED) != 0)
        GS_RUN(borrow);
}

static uint64_t bytes_of(uint64_t units) {
    return units << GS_UNIT_SHIFT;
}

/* ---- without a daemon ----------------------------------------------------------------------------- */

static bool alone_said;

static void say_alone(uint64_t limit) {
    const struct gs_options *options = gs_options();
    struct gs_text text = {0};
    if (__atomic_exchange_n(&alone_said, true, __ATOMIC_RELAXED))
        return;
    gs_text_add(&text, "there is no gpushare daemon: the limit of ");
    gs_text_bytes(&text, limit);
    if (options->limit_source[0] != '\0') {
        gs_text_add(&text, " (");
        gs_text_add(&text, options->limit_source);
        gs_text_add(&text, ")");
    }
    gs_text_add(&text, " holds for each process by itself, and nothing is lent\n"
                       "hint: `gpushare run` starts a daemon, unless GPUSHARE_SOCKET names one; `gpushare doctor` "
                       "looks for the cause");
    gs_say(GS_WARNING, GS_SAY_DAEMON, &text);
}

/* Credit up to the limit, less only if more is in use. Never UINT32_MAX: gs_units says that of any larger amount, which
 * must not fit. */
static void grant_limit(struct gs_line *line) {
    uint64_t word = gs_word_load(line), fresh;
    do {
        uint64_t used = gs_word_used(word), limit = line->limit < UINT32_MAX ? line->limit : UINT32_MAX - 1;
        fresh = used << 32 | (limit > used ? limit : used);
    } while (!__atomic_compare_exchange_n(&line->word, &word, fresh, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

/* A line of our own, whose credit is the limit. A daemon's line that the daemon no longer knows becomes ours as it is,
 * with what is charged there. */
static bool attach_alone(struct gs_gpu *gpu) {
    const struct gs_options *options = gs_options();
    uint64_t limit = gs_amount_resolve(options->limit, gpu->total);
    uint64_t request = gs_amount_resolve(options->request, gpu->total);
    struct gs_line *line = gpu->line != NULL ? gpu->line : gs_pages_new(GS_PAGE_BYTES);
    if (line == NULL)
        return false;
    memcpy(line->uuid, gpu->uuid, sizeof line->uuid);
    __atomic_store_n(&line->limit, limit >> GS_UNIT_SHIFT, __ATOMIC_RELAXED);
    __atomic_store_n(&line->request, request >> GS_UNIT_SHIFT, __ATOMIC_RELAXED);
    __atomic_store_n(&line->grantable, 0, __ATOMIC_RELAXED);
    line->attached = 1;
    grant_limit(line);
    gpu->own = true;
    __atomic_store_n(&gpu->attached, true, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->line, line, __ATOMIC_RELEASE);
    say_alone(limit);
    return true;
}

/* ---- messages ------------------------------------------------------------------------------------- */

/* Names the GPU by the daemon's number, as its messages and `gpushare status` do. CUDA's own number differs if
 * CUDA_VISIBLE_DEVICES is set. */
static void add_gpu(struct gs_text *text, const struct gs_gpu *gpu) {
    gs_text_add(text, gpu->node_number != 0 ? " on GPU " : " on CUDA device ");
    gs_text_number(text, gpu->node_number != 0 ? gpu->node_number - 1 : gpu->index);
}

/* `daemon_text` is the daemon's message, or NULL. If there is none, the message ends with `why`. */
static void say_refused(struct gs_gpu *gpu, uint32_t units, const char *daemon_text, const char *why) {
    struct gs_text text = {0};
    if (gpu->line != NULL)
        __atomic_fetch_add(&gpu->line->refusals, 1, __ATOMIC_RELAXED);
    if (daemon_text != NULL && daemon_text[0] != '\0') {
        gs_text_add(&text, daemon_text);
    } else {
        gs_text_add(&text, units != 0 ? "cannot allocate " : "cannot open a context");
        if (units != 0)
            gs_text_bytes(&text, bytes_of(units));
        add_gpu(&text, gpu);
        gs_text_add(&text, ": ");
        gs_text_add(&text, why);
    }
    gs_say(GS_WARNING, GS_SAY_REFUSED, &text);
}

static void say_over_limit(struct gs_gpu *gpu, uint32_t units) {
    struct gs_text why = {0};
    uint64_t word = gs_word_load(gpu->line);
    gs_text_add(&why, "over this process's limit\n  limit   ");
    gs_text_bytes(&why, bytes_of(gpu->line->limit));
    if (gs_options()->limit_source[0] != '\0') {
        gs_text_add(&why, "   from ");
        gs_text_add(&why, gs_options()->limit_source);
    }
    gs_text_add(&why, "\n  in use  ");
    gs_text_bytes(&why, bytes_of(gs_word_used(word)));
    gs_text_add(&why, "\nhint: raise the limit, or free memory first");
    say_refused(gpu, units, NULL, gs_text_ended(&why));
}

/* ---- with a daemon -------------------------------------------------------------------------------- */

static const char *why_not(enum gs_outcome outcome) {
    switch (outcome) {
    case GS_TURNED_AWAY:
        return "the gpushare daemon refuses this process";
    case GS_NO_ANSWER:
        return "the gpushare daemon does not answer";
    default:
        return "the gpushare daemon is away, and the credit that it gave is used up";
    }
}

/* Ask for room for a context beside those that are there. */
static enum gs_outcome ask_for_context(struct gs_gpu *gpu, uint32_t contexts, struct gs_answer *answer) {
    struct gs_frame frame = {.type = GS_ATTACH};
    struct gs_text waiting = {0};
    memcpy(frame.u.attach.uuid, gpu->uuid, sizeof gpu->uuid);
    frame.u.attach.total = gpu->total;
    frame.u.attach.contexts = contexts;
    gs_text_add(&waiting, "waiting for room for a context");
    add_gpu(&waiting, gpu);
    /* A job that a daemon has admitted waits for a daemon as long as for a claim: without one neither its limit nor its
     * request would hold. */
    enum gs_outcome outcome = gs_client_request(&frame, answer, &waiting, gs_options()->job_id != 0);
    while (outcome == GS_ANSWERED && answer->status == GS_ASK_AGAIN) {
        gs_sleep_us(PAUSE_US);
        outcome = gs_client_request(&frame, answer, NULL, gs_options()->job_id != 0);
    }
    return outcome;
}

static bool attach_at_daemon(struct gs_gpu *gpu, bool *alone) {
    struct gs_answer answer;
    enum gs_outcome outcome = ask_for_context(gpu, 0, &answer);
    /* The daemon is away and this GPU has no line yet: a limit of our own, so that the program can start. */
    *alone = outcome == GS_NO_DAEMON || (outcome == GS_AWAY && gpu->line == NULL);
    if (*alone)
        return false;
    if (outcome == GS_AWAY)
        return true; /* the line is there: go on with it, the daemon will see the context in NVML */
    if (outcome != GS_ANSWERED) {
        say_refused(gpu, 0, outcome == GS_TURNED_AWAY ? why_not(outcome) : NULL, why_not(outcome));
        return false;
    }
    if (answer.status == GS_OK && answer.line < GS_PAGE_LINES) {
        gpu->number = answer.line;
        gpu->node_number = answer.node_number;
        __atomic_store_n(&gpu->attached, true, __ATOMIC_RELAXED);
        __atomic_store_n(&gpu->line, &gs_client_page()->line[answer.line], __ATOMIC_RELEASE);
        gs_gate_is(&gpu->line->gate);
        return true;
    }
    *alone = answer.status == GS_UNKNOWN || answer.status == GS_BAD_FRAME || answer.status == GS_OK;
    if (*alone)
        gs_say_line(GS_WARNING, GS_SAY_DAEMON, answer.text[0] ? answer.text : "the gpushare daemon has no such GPU");
    else
        say_refused(gpu, 0, answer.text, "no room for a context");
    return false;
}

bool gs_account_attach(struct gs_gpu *gpu) {
    bool alone;
    if (__atomic_load_n(&gpu->line, __ATOMIC_ACQUIRE) != NULL && __atomic_load_n(&gpu->attached, __ATOMIC_RELAXED))
        return true;
    gs_mutex_lock(&gpu->mutex);
    bool good = gpu->attached;
    if (gpu->line == NULL)
        gpu->shows_request = gs_options()->visible_request;
    if (!good)
        good = attach_at_daemon(gpu, &alone) || (alone && attach_alone(gpu));
    gs_mutex_unlock(&gpu->mutex);
    if (good) {
        notice_borrower(gpu);
        GS_RUN(attached);
    }
    return good;
}

/* Without an answer it opens: the daemon will see it in NVML. */
bool gs_account_attach_another(struct gs_gpu *gpu) {
    struct gs_answer answer;
    if (gpu->own)
        return true;
    enum gs_outcome outcome = ask_for_context(gpu, __atomic_load_n(&gpu->contexts, __ATOMIC_RELAXED), &answer);
    bool refused = outcome == GS_ANSWERED && answer.status != GS_OK && answer.status != GS_UNKNOWN &&
                   answer.status != GS_BAD_FRAME;
    if (refused)
        say_refused(gpu, 0, answer.text, "no room for a context");
    return !refused;
}

void gs_account_detach(struct gs_gpu *gpu) {
    struct gs_frame frame = {.type = GS_DETACH};
    gs_mutex_lock(&gpu->mutex);
    /* Told also if it was not attached: a context that opened while the daemon was away is charged as soon as NVML
     * shows it. */
    if (gpu->line != NULL && !gpu->own && __atomic_load_n(&gpu->contexts, __ATOMIC_RELAXED) == 0) {
        frame.u.detach.line = gpu->number;
        __atomic_store_n(&gpu->attached, false, __ATOMIC_RELAXED);
        gs_client_tell(&frame);
    }
    gs_mutex_unlock(&gpu->mutex);
}

/* An allocation that the credit did not cover, from its first ask to its end. As long as `line->asking` counts it, the
 * daemon does not revoke credit that it granted within the request. */
struct gs_asking {
    struct gs_gpu *gpu;
    uint32_t units;
    uint32_t ticket; /* keeps its place among the claims */
    uint32_t rounds;
    uint64_t end; /* by gs_now_ms: longer than any claim may wait */
};

static uint32_t tickets;

static void begin_asking(struct gs_asking *asking, struct gs_gpu *gpu, uint32_t units) {
    *asking = (struct gs_asking){.gpu = gpu, .units = units, .end = gs_now_ms() + gs_client_patience() + MARGIN_MS};
    while (asking->ticket == 0)
        asking->ticket = __atomic_add_fetch(&tickets, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gpu->line->asking, 1, __ATOMIC_ACQ_REL);
}

static void end_asking(struct gs_asking *asking) {
    __atomic_fetch_sub(&asking->gpu->line->asking, 1, __ATOMIC_ACQ_REL);
}

/* Whether it may be within the request. This process does not know what the job's other processes use now, nor whether
 * the charge for its context is a guess. */
static bool within_request(const struct gs_gpu *gpu, uint32_t units) {
    const struct gs_line *line = gpu->line;
    uint64_t used = gs_word_used(gs_word_load(line));
    return used + units <= __atomic_load_n(&line->request, __ATOMIC_RELAXED);
}

/* More credit: `missing` beyond what is unused. */
static enum gs_outcome ask(struct gs_gpu *gpu, uint64_t missing, uint64_t units, uint32_t flags, uint32_t ticket,
                           struct gs_answer *answer) {
    struct gs_frame frame = {.type = GS_ASK};
    struct gs_text waiting = {0};
    bool within = within_request(gpu, (uint32_t)units);
    frame.u.ask.bytes = bytes_of(missing);
    frame.u.ask.line = gpu->number;
    frame.u.ask.flags = flags;
    frame.u.ask.allocation = bytes_of(units);
    frame.u.ask.ticket = ticket;
    gs_text_add(&waiting, "waiting for ");
    gs_text_bytes(&waiting, bytes_of(units));
    add_gpu(&waiting, gpu);
    gs_text_add(&waiting, within
                              ? ": it is within this job's request and is being asked back from those who borrowed it"
                              : ": it is above this job's request, and others wait for what is within theirs");
    return gs_client_request(&frame, answer, &waiting, flags == 0 && within);
}

/* Try again after the pools have given back what is charged and not in use. `all`: also what they keep in reserve. */
static bool reserve_after_squeeze(struct gs_gpu *gpu, uint32_t units, bool all) {
    gs_account_give_back(gpu, all);
    return gs_reserve(gpu->line, units);
}

/* How much the credit lacks for `units`: 0 if it would do now. */
static uint64_t lacking(const struct gs_line *line, uint32_t units) {
    uint64_t word = gs_word_load(line);
    uint64_t wanted = (uint64_t)gs_word_used(word) + units, credit = gs_word_credit(word);
    return wanted > credit ? wanted - credit : 0;
}

/* The daemon has not answered. Within the request this breaks the guarantee: the daemon reads the count later. */
static void say_undecided(struct gs_asking *asking, const char *why) {
    if (within_request(asking->gpu, asking->units))
        __atomic_fetch_add(&asking->gpu->line->unmet, 1, __ATOMIC_RELAXED);
    say_refused(asking->gpu, asking->units, NULL, why);
}

/* Reserve without a daemon, within the limit of this process alone. */
static bool reserve_alone(struct gs_gpu *gpu, uint32_t units) {
    bool reserved = reserve_after_squeeze(gpu, units, true);
    if (!reserved)
        say_over_limit(gpu, units);
    return reserved;
}

/* true: reserved, or worth another round. */
static bool ask_once(struct gs_asking *asking, bool *reserved) {
    struct gs_gpu *gpu = asking->gpu;
    uint32_t said;
    if (gs_gate_pass(&gpu->line->gate, &said) != GS_PASSED_OPEN)
        asking->end = gs_now_ms() + gs_client_patience() + MARGIN_MS;
    struct gs_answer answer = {0};
    uint64_t lack = lacking(gpu->line, asking->units);
    *reserved = gs_reserve(gpu->line, asking->units);
    if (*reserved || lack == 0)
        return true;
    enum gs_outcome outcome = ask(gpu, lack, asking->units, 0, asking->ticket, &answer);
    notice_borrower(gpu); /* the limit may have been raised since the GPU was attached */
    /* Whatever the answer: credit may have come meanwhile. */
    *reserved = gs_reserve(gpu->line, asking->units);
    if (*reserved || (outcome == GS_ANSWERED && answer.status == GS_OK))
        return true;
    if (answer.status == GS_UNKNOWN) {
        /* The daemon does not know that we are here: it was restarted and could not find our page. */
        __atomic_store_n(&gpu->attached, false, __ATOMIC_RELAXED);
        bool attached = gs_account_attach(gpu);
        if (gpu->own)
            *reserved = reserve_alone(gpu, asking->units);
        return attached && !gpu->own;
    }
    *reserved = reserve_after_squeeze(gpu, asking->units, true);
    bool closed = __atomic_load_n(&gpu->line->gate, __ATOMIC_ACQUIRE) != 0;
    if (*reserved || (outcome != GS_ANSWERED && closed)) /* the job was suspended while the daemon had the question */
        return true;
    if (outcome == GS_ANSWERED)
        say_refused(gpu, asking->units, answer.text, "not free now");
    else
        say_undecided(asking, why_not(outcome));
    return false;
}

/* Other threads of this process may take the credit of an answer. The daemon keeps this allocation's place and revokes
 * none of its credit meanwhile, so that one of the answers leaves enough. Only time ends this, no number of rounds. */
static bool ask_until_reserved(struct gs_asking *asking) {
    bool reserved = false;
    while (ask_once(asking, &reserved) && !reserved) {
        if (gs_now_ms() >= asking->end) {
            say_undecided(asking, "other threads of this process took the memory each time that it was granted");
            break;
        }
        if (++asking->rounds > EAGER_ROUNDS)
            gs_sleep_us(PAUSE_US);
    }
    return reserved;
}

bool gs_account_reserve_slow(struct gs_gpu *gpu, uint32_t units) {
    struct gs_asking asking;
    if (reserve_after_squeeze(gpu, units, false))
        return true;
    if (gpu->own)
        return reserve_alone(gpu, units);
    begin_asking(&asking, gpu, units);
    bool reserved = ask_until_reserved(&asking);
    end_asking(&asking);
    return reserved;
}

bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    struct gs_answer answer;
    if (gpu->own)
        return false;
    if (ask(gpu, units, units, GS_ASK_DRIVER_FAILED, 0, &answer) != GS_ANSWERED)
        return false;
    if (answer.status != GS_OK)
        say_refused(gpu, units, answer.text, "the GPU is full although this job's account is not");
    return answer.status == GS_OK;
}

void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units) {
    struct gs_answer answer;
    if (!gpu->own)
        ask(gpu, units, units, GS_ASK_DRIVER_FAILED | GS_ASK_FAILED_AGAIN, 0, &answer);
}

/* ---- what a program is told ----------------------------------------------------------------------- */

uint64_t gs_account_total_expected(uint64_t total) {
    const struct gs_options *options = gs_options();
    uint64_t limit = gs_amount_resolve(options->limit, total), request = gs_amount_resolve(options->request, total);
    uint64_t shown = options->visible_request && request != 0 ? request : limit;
    return shown < total ? shown : total;
}

GS_AT(fork) {
    alone_said = false;
}
