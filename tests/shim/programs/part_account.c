/* part_account.c: the slow path of an allocation, beside a daemon that the program plays: what it says, what is in the
 * page by then, and what the process is told. */
#define _GNU_SOURCE /* pipe2 */
#include <stddef.h>
#include <time.h>

/* What another thread does meanwhile, once: after a look at a word or the clock, and while a mutex is waited for. */
static void (*after_look)(void), (*while_locking)(void), (*at_clock)(void);

static void run_once(void (**what)(void)) {
    void (*run)(void) = *what;
    *what = NULL;
    if (run != NULL)
        run();
}

static volatile unsigned long clock_ms = 1000;
static int clock_gettime_of_test(clockid_t clock, struct timespec *now) {
    (void)clock;
    run_once(&at_clock);
    *now = (struct timespec){(time_t)(clock_ms / 1000), (long)(clock_ms % 1000) * 1000000};
    return 0;
}
#define clock_gettime clock_gettime_of_test
#include "part.h"

#include "credit.h"

static uint64_t look_of_test(const struct gs_line *line) {
    uint64_t word = gs_word_load(line);
    run_once(&after_look);
    return word;
}

static void mutex_lock_of_test(struct gs_mutex *mutex) {
    run_once(&while_locking);
    counted_mutex_lock(mutex);
}

static uint64_t slept_us;
static bool no_pages;

#define gs_word_load(line) look_of_test(line)
#undef gs_mutex_lock
#define gs_mutex_lock(mutex) mutex_lock_of_test(mutex)
#define gs_sleep_us(us)      (slept_us += (us))
#define gs_pages_new(size)   (no_pages ? NULL : gs_pages_new(size))

#define at_fork    fork_of_account
#define entry_fork entry_of_account
#include "account.c"
#undef at_fork
#undef entry_fork
#include "message.c"

#define at_fork    fork_of_gate
#define entry_fork entry_of_gate
#include "gate.c"
#undef at_fork
#undef entry_fork

struct gs_driver gs_driver;
enum gs_mode gs_mode;

static struct gs_options options;
static struct gs_page page;
static bool page_there;
static uint32_t borrows, attaches;

const struct gs_options *gs_options(void) {
    return &options;
}

struct gs_page *gs_client_page(void) {
    return page_there ? &page : NULL;
}

uint64_t gs_client_patience(void) {
    return 60000;
}

uint64_t gs_amount_resolve(struct gs_amount amount, uint64_t total) {
    return amount.kind == GS_AMOUNT_BYTES ? amount.value : total;
}

GS_AT(borrow) {
    borrows++;
}

GS_AT(attached) {
    attaches++;
}

/* What the daemon has heard, and what it answers: the same until it is changed. */
static struct {
    struct gs_frame frame;
    uint32_t count, told;
    bool guaranteed;
    char waiting[300];
} heard;

static struct {
    enum gs_outcome outcome;
    uint32_t status, line, number, again; /* so often ASK_AGAIN comes first */
    const char *text;
    uint32_t grants; /* units, before it answers */
    void (*does)(void);
} daemon_;

static struct gs_gpu gpu;

enum gs_outcome gs_client_request(struct gs_frame *frame, struct gs_answer *answer, const struct gs_text *waiting,
                                  bool guaranteed) {
    heard.frame = *frame;
    heard.count++;
    heard.guaranteed = guaranteed;
    if (waiting != NULL)
        snprintf(heard.waiting, sizeof heard.waiting, "%.*s", (int)waiting->length, waiting->bytes);
    else
        heard.waiting[0] = '\0';
    if (daemon_.does != NULL)
        daemon_.does();
    if (daemon_.outcome != GS_ANSWERED)
        return daemon_.outcome;
    if (daemon_.grants != 0)
        gs_grant(gpu.line, daemon_.grants);
    *answer = (struct gs_answer){.status = daemon_.status, .line = daemon_.line, .node_number = daemon_.number};
    if (daemon_.again > 0) {
        daemon_.again--;
        answer->status = GS_ASK_AGAIN;
    }
    snprintf(answer->text, sizeof answer->text, "%s", daemon_.text != NULL ? daemon_.text : "");
    return GS_ANSWERED;
}

void gs_client_tell(struct gs_frame *frame) {
    heard.frame = *frame;
    heard.told++;
}

/* What has been written to stderr since the last time. */
static int saved_stderr, pipes[2];
static const char *said(void) {
    static char text[4000];
    ssize_t length = read(pipes[0], text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    clock_ms += 5000; /* the next message of the kind is not held back */
    return text;
}

#define SAID(expected)                                                                                                 \
    do {                                                                                                               \
        const char *text_ = said();                                                                                    \
        if (strcmp(text_, expected) != 0) {                                                                            \
            dprintf(saved_stderr, "%s:%d: %s\n", __FILE__, __LINE__, text_);                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#undef REQUIRE
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(saved_stderr, "%s:%d: %s; %s\n", __FILE__, __LINE__, #condition, said());                          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define MIB        (1ull << 20)
#define UNITS(mib) ((uint32_t)((mib) * (MIB / GS_UNIT_BYTES)))

static void begin(uint64_t limit_mib, uint64_t request_mib) {
    gpu = (struct gs_gpu){.index = 2, .total = 16384 * MIB, .uuid = {1, 2, 3}};
    memset(&page, 0, sizeof page);
    memset(&heard, 0, sizeof heard);
    memset(&daemon_, 0, sizeof daemon_);
    memset(&options, 0, sizeof options);
    options.limit = (struct gs_amount){.value = limit_mib * MIB, .kind = GS_AMOUNT_BYTES};
    options.request = (struct gs_amount){.value = request_mib * MIB, .kind = GS_AMOUNT_BYTES};
    page_there = true;
    slept_us = 0;
    alone_said = 0;
    borrows = attaches = 0;
    SAID("");
}

/* Attached at the daemon's line 3, GPU 5 on the node. */
static void attached(uint64_t limit_mib, uint64_t request_mib) {
    begin(limit_mib, request_mib);
    daemon_.line = 3;
    daemon_.number = 6;
    page.line[3].limit = UNITS(limit_mib);
    page.line[3].request = UNITS(request_mib);
    REQUIRE(gs_account_attach(&gpu));
    REQUIRE(heard.frame.type == GS_ATTACH && memcmp(heard.frame.u.attach.uuid, gpu.uuid, sizeof gpu.uuid) == 0);
    REQUIRE(heard.frame.u.attach.total == gpu.total && gpu.line == &page.line[3] && gpu.number == 3 && gpu.attached);
    REQUIRE(strcmp(heard.waiting, "waiting for room for a context on CUDA device 2") == 0 && gpu.node_number == 6);
    REQUIRE(attaches == 1 && !gpu.own && heard.count == 1 && heard.frame.u.attach.contexts == 0);
    page.line[3].gate = 1;
    REQUIRE(gs_gate_is_closed()); /* the program's calls wait at this one now */
    page.line[3].gate = 0;
    heard.count = 0;
}

/* ---- attaching ------------------------------------------------------------------------------------ */

static void goes_after_the_first(void) {
    if (heard.count == 2)
        daemon_.outcome = GS_NO_DAEMON;
}

static void attach(void) {
    attached(100, 100);
    REQUIRE(borrows == 0 && !heard.guaranteed); /* nothing to give back */
    REQUIRE(gs_account_attach(&gpu) && heard.count == 0 && attaches == 1);
    attached(101, 100);
    REQUIRE(borrows == 1);
    begin(100, 100);
    page.trim_ms = 1; /* it steps aside when it is idle */
    REQUIRE(gs_account_attach(&gpu) && borrows == 1);
    begin(100, 100);
    options.job_id = 1;
    options.visible_request = true;
    daemon_.again = 2; /* the job is suspended */
    REQUIRE(gs_account_attach(&gpu) && heard.guaranteed && heard.count == 3 && gpu.shows_request);
    REQUIRE(heard.waiting[0] == '\0' && slept_us >= 2); /* it does not ask as fast as it can */
    begin(100, 100);
    daemon_.again = 1;
    daemon_.does = goes_after_the_first;
    REQUIRE(gs_account_attach(&gpu) && gpu.own && heard.count == 2);
    gs_pages_drop(gpu.line, GS_PAGE_BYTES);
    said();
}

static void attaches_too(void) {
    gpu.attached = true;
    gpu.line = &page.line[3];
}

/* Another thread attaches meanwhile: what it has is used, and only once it is whole. */
static void attach_beside(void) {
    begin(100, 100);
    while_locking = attaches_too;
    REQUIRE(gs_account_attach(&gpu) && heard.count == 0 && gpu.line == &page.line[3]);
    begin(100, 100);
    gpu.attached = true; /* its line is not there yet */
    while_locking = attaches_too;
    REQUIRE(gs_account_attach(&gpu) && while_locking == NULL && gpu.line == &page.line[3]);
    SAID("");
}

/* Refused: the user is told by whom. */
static void refused(void) {
    begin(100, 100);
    daemon_.status = GS_NOT_ADMITTED;
    daemon_.text = "no place here";
    REQUIRE(!gs_account_attach(&gpu) && gpu.line == NULL && attaches == 0);
    SAID("gpushare: no place here\n");
    daemon_.text = "!";
    REQUIRE(!gs_account_attach(&gpu));
    SAID("gpushare: !\n");
    daemon_.text = NULL;
    REQUIRE(!gs_account_attach(&gpu));
    SAID("gpushare: cannot open a context on CUDA device 2: no room for a context\n");
    daemon_.outcome = GS_TURNED_AWAY;
    REQUIRE(!gs_account_attach(&gpu));
    SAID("gpushare: the gpushare daemon refuses this process\n");
    daemon_.outcome = GS_NO_ANSWER;
    REQUIRE(!gs_account_attach(&gpu) && gpu.line == NULL);
    SAID("gpushare: cannot open a context on CUDA device 2: the gpushare daemon does not answer\n");
}

static const char alone_text[] =
    "gpushare: there is no gpushare daemon: the limit of 100.0 MiB%s holds for each process by itself, and nothing is "
    "lent\nhint: `gpushare run` starts a daemon, unless GPUSHARE_SOCKET names one; `gpushare doctor` looks for the "
    "cause\n";

/* Without a daemon: the limit of the environment, said once. */
static void alone(void) {
    char text[500];
    for (int how = 0; how < 6; how++) {
        begin(100, 40);
        daemon_.outcome = how == 0 ? GS_NO_DAEMON : how == 1 ? GS_AWAY : GS_ANSWERED;
        daemon_.status = how == 2 ? GS_UNKNOWN : how == 3 ? GS_BAD_FRAME : GS_OK;
        daemon_.line = how >= 4 ? GS_PAGE_LINES : 0; /* a line that is none */
        daemon_.text = how == 3 ? "?" : NULL;
        if (how == 1 || how == 5)
            snprintf(options.limit_source, sizeof options.limit_source, "GPUSHARE_LIMIT=100Mi");
        REQUIRE(gs_account_attach(&gpu) && gpu.own && gpu.attached && borrows == 0 && attaches == 1);
        REQUIRE(gpu.line != NULL && gpu.line != &page.line[0] && gpu.line->limit == UNITS(100));
        REQUIRE(gpu.line->request == UNITS(40) && gpu.line->attached == 1 && gpu.line->grantable == 0);
        REQUIRE(memcmp(gpu.line->uuid, gpu.uuid, sizeof gpu.uuid) == 0);
        REQUIRE(gs_word_credit(gs_word_load(gpu.line)) == UNITS(100) && gs_word_used(gs_word_load(gpu.line)) == 0);
        if (how < 2) {
            snprintf(text, sizeof text, alone_text, how == 1 ? " (GPUSHARE_LIMIT=100Mi)" : "");
            SAID(text);
        } else { /* why is said instead, and this one is held back */
            const char *told = said();
            REQUIRE(strcmp(told, how == 3 ? "gpushare: ?\n" : "gpushare: the gpushare daemon has no such GPU\n") == 0);
        }
        struct gs_gpu second = {.index = 1, .total = 8192 * MIB};
        REQUIRE(gs_account_attach(&second) && second.own && second.line != gpu.line);
        said(); /* only what is said of the daemon */
        REQUIRE(gs_account_reserve(&gpu, UNITS(100)) && !gs_account_reserve(&gpu, 1) && gpu.line->refusals == 1);
        snprintf(text, sizeof text,
                 "gpushare: cannot allocate 512 B on CUDA device 2: over this process's limit\n  limit   100.0 MiB%s\n"
                 "  in use  100.0 MiB\nhint: raise the limit, or free memory first\n",
                 how == 1 || how == 5 ? "   from GPUSHARE_LIMIT=100Mi" : "");
        SAID(text);
        uint32_t count = heard.count;
        REQUIRE(!gs_account_driver_failed(&gpu, 1) && heard.count == count);
        gs_account_driver_failed_again(&gpu, 1);
        gs_account_detach(&gpu);
        REQUIRE(heard.count == count && heard.told == 0);
        gs_pages_drop(second.line, GS_PAGE_BYTES);
        gs_pages_drop(gpu.line, GS_PAGE_BYTES);
    }
}

/* Without memory for a page there is no account, so no context. */
static void no_page(void) {
    begin(100, 40);
    daemon_.outcome = GS_NO_DAEMON;
    no_pages = true;
    REQUIRE(!gs_account_attach(&gpu) && gpu.line == NULL && !gpu.own && attaches == 0);
    no_pages = false;
}

/* More than a word can say: what is asked for beyond all bounds still does not fit. */
static void a_large_limit(void) {
    for (uint32_t less = 0; less <= 3; less++) { /* units less than 2 TiB */
        uint32_t most = less < 2 ? UINT32_MAX - 1 : UINT32_MAX - less + 1;
        begin(2048 * 1024, 0);
        options.limit.value -= less * GS_UNIT_BYTES;
        daemon_.outcome = GS_NO_DAEMON;
        REQUIRE(gs_account_attach(&gpu) && !gs_account_reserve(&gpu, gs_units(UINT64_MAX / 2)));
        said();
        REQUIRE(gs_account_reserve(&gpu, most) && !gs_account_reserve(&gpu, 1));
        said();
        gs_pages_drop(gpu.line, GS_PAGE_BYTES);
    }
}

static void frees_some(void) {
    gs_release(gpu.line, UNITS(20));
}

/* A daemon that does not know us: our line becomes our own as it is, with credit up to the limit or what is used. */
static void forgotten(void) {
    for (int more = 0; more < 2; more++) {
        attached(100, 100);
        gs_grant(gpu.line, UNITS(300));
        REQUIRE(gs_reserve(gpu.line, UNITS(more ? 150 : 50)));
        gpu.line->grantable = 9;
        gpu.attached = 0;
        daemon_.status = GS_UNKNOWN;
        after_look = frees_some; /* another thread, at that moment */
        REQUIRE(gs_account_attach(&gpu) && gpu.own && gpu.line == &page.line[3] && gpu.line->grantable == 0);
        REQUIRE(gs_word_credit(gs_word_load(gpu.line)) == UNITS(more ? 130 : 100));
        REQUIRE(gs_word_used(gs_word_load(gpu.line)) == UNITS(more ? 130 : 30));
        said();
    }
    attached(100, 100); /* away, with a line: it goes on with that */
    gpu.attached = 0;
    daemon_.outcome = GS_AWAY;
    REQUIRE(gs_account_attach(&gpu) && !gpu.own && !gpu.attached && gpu.line == &page.line[3]);
    SAID("");
}

static void detach(void) {
    attached(100, 100);
    gpu.contexts = 1;
    gs_account_detach(&gpu);
    REQUIRE(heard.told == 0 && gpu.attached);
    gpu.contexts = 0;
    gs_account_detach(&gpu);
    REQUIRE(heard.told == 1 && heard.frame.type == GS_DETACH && heard.frame.u.detach.line == 3 && !gpu.attached);
    gs_account_detach(&gpu); /* it may have opened while no daemon was there */
    REQUIRE(heard.told == 2);
    struct gs_gpu none = {0};
    gs_account_detach(&none);
    REQUIRE(heard.told == 2);
}

/* Another context on the GPU: it opens unless the daemon says no. */
static void another(void) {
    static const uint32_t goes_on[] = {GS_OK, GS_UNKNOWN, GS_BAD_FRAME};
    static const enum gs_outcome no_answer[] = {GS_AWAY, GS_NO_ANSWER, GS_NO_DAEMON, GS_TURNED_AWAY};
    attached(100, 100);
    gpu.contexts = 2;
    for (size_t i = 0; i < sizeof goes_on / sizeof *goes_on; i++) {
        daemon_.status = goes_on[i];
        REQUIRE(gs_account_attach_another(&gpu) && heard.count == i + 1);
        REQUIRE(heard.frame.type == GS_ATTACH && heard.frame.u.attach.contexts == 2 && gpu.line->refusals == 0);
        SAID("");
    }
    daemon_.status = GS_NOT_ADMITTED;
    REQUIRE(!gs_account_attach_another(&gpu) && gpu.line->refusals == 1);
    SAID("gpushare: cannot open a context on GPU 5: no room for a context\n");
    daemon_.text = "no place here";
    REQUIRE(!gs_account_attach_another(&gpu) && gpu.line->refusals == 2);
    SAID("gpushare: no place here\n");
    for (size_t i = 0; i < sizeof no_answer / sizeof *no_answer; i++) {
        daemon_.outcome = no_answer[i];
        REQUIRE(gs_account_attach_another(&gpu) && gpu.line->refusals == 2);
        SAID("");
    }
    daemon_.outcome = GS_ANSWERED;
    gpu.own = true;
    heard.count = 0;
    REQUIRE(gs_account_attach_another(&gpu) && heard.count == 0); /* nobody to ask */
}

/* ---- asking --------------------------------------------------------------------------------------- */

static uint32_t used(void) {
    return gs_word_used(gs_word_load(gpu.line));
}

static uint32_t asking_seen, tickets_seen[4];
static void note_asking(void) {
    asking_seen = gpu.line->asking;
    if (heard.count <= 4)
        tickets_seen[heard.count - 1] = heard.frame.u.ask.ticket;
}

/* What is asked: what lacks, for what, with which place; and what a waiting user reads. */
static void asks(void) {
    attached(500, 100);
    daemon_.does = note_asking;
    daemon_.grants = UNITS(60);
    REQUIRE(gs_account_reserve(&gpu, UNITS(60)) && used() == UNITS(60) && heard.count == 1 && asking_seen == 1);
    REQUIRE(heard.frame.type == GS_ASK && heard.frame.u.ask.bytes == 60 * MIB && heard.frame.u.ask.line == 3);
    REQUIRE(heard.frame.u.ask.allocation == 60 * MIB && heard.frame.u.ask.flags == 0 && heard.guaranteed);
    REQUIRE(tickets_seen[0] != 0 && gpu.line->asking == 0 && borrows == 2);
    REQUIRE(strcmp(heard.waiting, "waiting for 60.0 MiB on GPU 5: it is within this job's request and is being asked "
                                  "back from those who borrowed it") == 0);
    gs_grant(gpu.line, UNITS(10));
    daemon_.grants = UNITS(31);
    heard.count = 0;
    uint32_t first = tickets_seen[0]; /* one above the request is no guarantee */
    REQUIRE(gs_account_reserve(&gpu, UNITS(40) + 1) && used() == UNITS(100) + 1 && !heard.guaranteed);
    REQUIRE(heard.frame.u.ask.bytes == 30 * MIB + 512 && heard.frame.u.ask.allocation == 40 * MIB + 512);
    REQUIRE(tickets_seen[0] != 0 && tickets_seen[0] != first);
    REQUIRE(strcmp(heard.waiting, "waiting for 40.0 MiB on GPU 5: it is above this job's request, and others wait for "
                                  "what is within theirs") == 0);
    gs_release(gpu.line, UNITS(40) + 1);
    gs_revoke(gpu.line, UINT32_MAX);
    daemon_.grants = UNITS(40); /* exactly the request is one */
    REQUIRE(gs_account_reserve(&gpu, UNITS(40)) && heard.guaranteed);
    SAID("");
    gs_release(gpu.line, UNITS(40));
    gs_revoke(gpu.line, UINT32_MAX);
    tickets = UINT32_MAX; /* 0 is no ticket */
    heard.count = 0;
    REQUIRE(gs_account_reserve(&gpu, UNITS(40)) && tickets_seen[0] == 1);
}

static void suspends(void) {
    page.line[3].gate = 1;
}

static void says_no(void) {
    attached(500, 100);
    daemon_.status = GS_NOT_FREE;
    daemon_.text = "all of it is lent";
    REQUIRE(!gs_account_reserve(&gpu, UNITS(200)) && used() == 0 && gpu.line->refusals == 1 && gpu.line->unmet == 0);
    SAID("gpushare: all of it is lent\n");
    daemon_.text = NULL;
    REQUIRE(!gs_account_reserve(&gpu, UNITS(200)) && gpu.line->refusals == 2 && gpu.line->asking == 0);
    SAID("gpushare: cannot allocate 200.0 MiB on GPU 5: not free now\n");
    static const struct {
        enum gs_outcome outcome;
        const char *why;
    } of[] = {{GS_NO_ANSWER, "the gpushare daemon does not answer"},
              {GS_TURNED_AWAY, "the gpushare daemon refuses this process"},
              {GS_AWAY, "the gpushare daemon is away, and the credit that it gave is used up"}};
    for (int i = 0; i < 3; i++) {
        char text[200];
        daemon_.outcome = of[i].outcome;
        REQUIRE(!gs_account_reserve(&gpu, UNITS(200)) && gpu.line->unmet == (uint32_t)i);
        snprintf(text, sizeof text, "gpushare: cannot allocate 200.0 MiB on GPU 5: %s\n", of[i].why);
        SAID(text);
        REQUIRE(!gs_account_reserve(&gpu, UNITS(100)) && gpu.line->unmet == (uint32_t)i + 1); /* a broken guarantee */
        said();
    }
    daemon_.outcome = GS_ANSWERED; /* an answer is one, also if the job is suspended by then */
    daemon_.does = suspends;
    heard.count = 0;
    REQUIRE(!gs_account_reserve(&gpu, UNITS(200)) && heard.count == 1);
    SAID("gpushare: cannot allocate 200.0 MiB on GPU 5: not free now\n");
    daemon_.does = NULL;
    page.line[3].gate = 0;
    gpu.node_number = 0; /* an older daemon does not tell its number */
    daemon_.outcome = GS_ANSWERED;
    REQUIRE(!gs_account_reserve(&gpu, UNITS(200)));
    SAID("gpushare: cannot allocate 200.0 MiB on CUDA device 2: not free now\n");
}

static void grants_the_third_time(void) {
    note_asking();
    clock_ms += 1000;
    daemon_.grants = heard.count >= 3 ? UNITS(10) : 0;
}

static void never_grants(void) {
    clock_ms += 2000;
}

/* Answers that bring nothing are asked again with the same place, until the time of any claim is over. */
static void empty_answers(void) {
    attached(500, 100);
    daemon_.does = grants_the_third_time;
    REQUIRE(gs_account_reserve(&gpu, UNITS(10)) && heard.count == 3);
    REQUIRE(tickets_seen[0] == tickets_seen[1] && tickets_seen[1] == tickets_seen[2]);
    daemon_.does = never_grants;
    daemon_.grants = 0;
    heard.count = 0;
    REQUIRE(!gs_account_reserve(&gpu, UNITS(10)) && heard.count == 32 && gpu.line->unmet == 1 && gpu.line->asking == 0);
    SAID("gpushare: cannot allocate 10.0 MiB on GPU 5: other threads of this process took the memory each time that it "
         "was granted\n");
}

static void comes_anyway(void) {
    gs_grant(gpu.line, UNITS(30));
}

/* Whatever the answer, credit that is there is taken. */
static void credit_meanwhile(void) {
    attached(500, 100);
    daemon_.does = comes_anyway;
    daemon_.status = GS_NOT_FREE;
    REQUIRE(gs_account_reserve(&gpu, UNITS(30)) && used() == UNITS(30));
    daemon_.outcome = GS_AWAY;
    REQUIRE(gs_account_reserve(&gpu, UNITS(30)) && used() == UNITS(60) && gpu.line->unmet == 0);
    SAID("");
}

static void ten_come(void) {
    gs_grant(gpu.line, UNITS(10));
}

static void ten_go(void) {
    REQUIRE(gs_reserve(gpu.line, UNITS(10)));
}

/* Credit comes, and another thread takes it first: then all of it is asked for. */
static void another_is_faster(void) {
    attached(500, 100);
    at_clock = ten_come;
    after_look = ten_go;
    daemon_.grants = UNITS(10);
    REQUIRE(gs_account_reserve(&gpu, UNITS(10)) && at_clock == NULL && after_look == NULL);
    REQUIRE(heard.count == 1 && heard.frame.u.ask.bytes == 10 * MIB && used() == UNITS(20));
    SAID("");
}

static bool squeezed_all, squeezed;
static uint32_t kept_in_pools;
static void squeeze(struct gs_gpu *of, bool all) {
    squeezed = true;
    squeezed_all = squeezed_all || all;
    if (all == (kept_in_pools > UNITS(50))) /* more than that is only kept in reserve */
        gs_release(of->line, kept_in_pools);
}

/* Pools give back before the daemon is asked, and their reserve before a refusal. */
static void pools_first(void) {
    for (int how = 0; how < 3; how++) {
        int all = how > 0;
        attached(500, 100);
        gpu.own = how == 2; /* without a daemon nobody is asked */
        kept_in_pools = UNITS(all ? 80 : 40);
        gs_grant(gpu.line, UNITS(80));
        REQUIRE(gs_reserve(gpu.line, UNITS(80)));
        daemon_.status = GS_NOT_FREE;
        gs_account_squeeze[GS_SQUEEZE_POOLS] = squeeze;
        squeezed = squeezed_all = false;
        REQUIRE(gs_account_reserve(&gpu, UNITS(40)) && squeezed && squeezed_all == (all == 1));
        REQUIRE(heard.count == (how == 1) && used() == UNITS(all ? 40 : 80));
        gs_account_squeeze[GS_SQUEEZE_POOLS] = NULL;
        SAID("");
    }
}

/* Credit that has come meanwhile is taken, and pools keep their reserve. */
static void pools_keep_their_reserve(void) {
    attached(500, 100);
    daemon_.does = comes_anyway;
    daemon_.status = GS_NOT_FREE;
    kept_in_pools = 0;
    gs_account_squeeze[GS_SQUEEZE_POOLS] = squeeze;
    squeezed_all = false;
    REQUIRE(gs_account_reserve(&gpu, UNITS(30)) && !squeezed_all);
    gs_account_squeeze[GS_SQUEEZE_POOLS] = NULL;
}

static void knows_again(void) {
    if (heard.frame.type == GS_ATTACH) {
        daemon_.status = GS_OK;
        daemon_.grants = UNITS(20);
    }
}

/* It grants what is asked for once it knows the GPU again. */
static void knows_again_and_then_grants(void) {
    daemon_.grants = daemon_.status == GS_OK ? UNITS(20) : 0;
    if (heard.frame.type == GS_ATTACH)
        daemon_.status = GS_OK;
}

static void is_no_daemon(void) {
    if (heard.frame.type == GS_ATTACH)
        daemon_.outcome = GS_NO_DAEMON;
}

static void refuses_the_context(void) {
    if (heard.frame.type == GS_ATTACH) {
        daemon_.status = GS_NOT_ADMITTED;
        daemon_.text = "no place";
    }
}

/* A daemon that does not know the line is told of the GPU again. */
static void unknown_line(void) {
    attached(100, 100);
    daemon_.status = GS_UNKNOWN;
    daemon_.does = knows_again;
    REQUIRE(gs_account_reserve(&gpu, UNITS(20)) && gpu.attached && !gpu.own && used() == UNITS(20));
    for (int heard_of = 0; heard_of < 2; heard_of++) { /* nor does one that was away when the context opened */
        attached(100, 100);
        gpu.attached = heard_of;
        daemon_.status = GS_UNKNOWN;
        daemon_.does = knows_again_and_then_grants;
        REQUIRE(gs_account_reserve(&gpu, UNITS(20)) && gpu.attached && !gpu.own && used() == UNITS(20));
        REQUIRE(heard.count == 3);
        SAID("");
    }
    attached(100, 100);
    daemon_.status = GS_UNKNOWN;
    daemon_.does = is_no_daemon;
    REQUIRE(gs_account_reserve(&gpu, UNITS(70)) && gpu.own && used() == UNITS(70) && gpu.line->unmet == 0);
    said();
    attached(100, 100);
    daemon_.status = GS_UNKNOWN;
    daemon_.does = is_no_daemon;
    REQUIRE(!gs_account_reserve(&gpu, UNITS(101)) && gpu.own && used() == 0);
    REQUIRE(strstr(said(), "over this process's limit") != NULL);
    attached(100, 100);
    daemon_.status = GS_UNKNOWN;
    daemon_.does = refuses_the_context;
    REQUIRE(!gs_account_reserve(&gpu, UNITS(10)) && used() == 0);
    SAID("gpushare: no place\n");
}

/* A driver without memory although the account has: the daemon looks, and says whether to try again. */
static void driver_failed(void) {
    attached(500, 100);
    REQUIRE(gs_account_driver_failed(&gpu, UNITS(30)) && !heard.guaranteed);
    REQUIRE(heard.frame.u.ask.flags == GS_ASK_DRIVER_FAILED && heard.frame.u.ask.ticket == 0);
    REQUIRE(heard.frame.u.ask.bytes == 30 * MIB && heard.frame.u.ask.allocation == 30 * MIB);
    SAID("");
    daemon_.status = GS_TIMED_OUT;
    REQUIRE(!gs_account_driver_failed(&gpu, UNITS(30)));
    SAID("gpushare: cannot allocate 30.0 MiB on GPU 5: the GPU is full although this job's account is not\n");
    daemon_.outcome = GS_AWAY;
    REQUIRE(!gs_account_driver_failed(&gpu, UNITS(30)));
    SAID("");
    heard.count = 0;
    gs_account_driver_failed_again(&gpu, UNITS(30));
    REQUIRE(heard.count == 1 && heard.frame.u.ask.flags == (GS_ASK_DRIVER_FAILED | GS_ASK_FAILED_AGAIN));
}

/* What a program is told of the whole. */
static void totals(void) {
    begin(100, 40);
    REQUIRE(gs_account_total_expected(16384 * MIB) == 100 * MIB && gs_account_total_expected(60 * MIB) == 60 * MIB);
    options.visible_request = true;
    REQUIRE(gs_account_total_expected(16384 * MIB) == 40 * MIB);
    options.request.value = 0;
    REQUIRE(gs_account_total_expected(16384 * MIB) == 100 * MIB);
    struct gs_line line = {.limit = UNITS(100), .request = UNITS(40), .grantable = UNITS(10)};
    struct gs_gpu of = {.line = &line, .total = 16384 * MIB};
    gs_grant(&line, UNITS(30));
    gs_reserve(&line, UNITS(20));
    REQUIRE(gs_account_memory(&of).total == 100 * MIB && gs_account_memory(&of).free == 20 * MIB);
    line.grantable = UNITS(90);
    REQUIRE(gs_account_memory(&of).free == 80 * MIB);
    of.shows_request = true;
    REQUIRE(gs_account_memory(&of).total == 40 * MIB && gs_account_memory(&of).free == 20 * MIB);
    gs_grant(&line, UNITS(30));
    gs_reserve(&line, UNITS(35)); /* more than what it is shown */
    REQUIRE(gs_account_memory(&of).total == 40 * MIB && gs_account_memory(&of).free == 0);
    line.request = 0;
    of.total = 70 * MIB;
    REQUIRE(gs_account_memory(&of).total == 70 * MIB && gs_account_memory(&of).free == 15 * MIB);
}

/* A text as a string: with its end, also where it is full. */
static void texts(void) {
    struct {
        struct gs_text text;
        char behind[8];
    } one;
    memset(&one, 'b', sizeof one);
    one.text.length = 0;
    REQUIRE(strcmp(gs_text_ended(&one.text), "") == 0);
    gs_text_add(&one.text, "ab");
    gs_text_number(&one.text, 907);
    REQUIRE(strcmp(gs_text_ended(&one.text), "ab907") == 0 && one.text.length == 5);
    while (one.text.length < sizeof one.text.bytes - 1)
        gs_text_add(&one.text, "x");
    REQUIRE(strlen(gs_text_ended(&one.text)) == sizeof one.text.bytes - 1);
    gs_text_add(&one.text, "yz");
    REQUIRE(one.text.length == sizeof one.text.bytes && one.text.bytes[sizeof one.text.bytes - 1] == 'y');
    REQUIRE(strlen(gs_text_ended(&one.text)) == sizeof one.text.bytes - 1 && one.behind[0] == 'b');
}

/* An amount as a person reads it: a tenth of the unit, rounded, and never 1024.0 of one. */
static void amounts(void) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } of[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {1048524, "1023.9 KiB"},
        {1048525, "1.0 MiB"},
        {MIB, "1.0 MiB"},
        {5 * MIB / 2, "2.5 MiB"},
        {1073689396, "1.0 GiB"},
        {1073689395, "1023.9 MiB"},
        {1024 * MIB, "1.0 GiB"},
        {1536 * MIB, "1.5 GiB"},
        {1127428915, "1.0 GiB"},
        {1127428916, "1.1 GiB"},
        {81559 * MIB, "79.6 GiB"},
        {UINT64_MAX, "17179869184.0 GiB"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct gs_text text = {0};
        gs_text_bytes(&text, of[i].bytes);
        REQUIRE(strcmp(gs_text_ended(&text), of[i].text) == 0);
    }
}

/* One message a second of each kind, then how many were held back; a child counts afresh. */
static void held_back(void) {
    clock_ms += 5000;
    gs_say_line(GS_WARNING, GS_SAY_COPY, "first");
    clock_ms += 999;
    gs_say_line(GS_WARNING, GS_SAY_COPY, "second");
    gs_say_line(GS_INFO, GS_SAY_TRIM, "not wanted");
    clock_ms += 1;
    gs_say_line(GS_WARNING, GS_SAY_COPY, "third\n\n");
    SAID("gpushare: first\ngpushare: 1 more message like the next\ngpushare: third\n");
    gs_say_line(GS_WARNING, GS_SAY_COPY, "fourth");
    for (int i = 0; i < 3; i++)
        gs_say_line(GS_WARNING, GS_SAY_COPY, "fifth");
    clock_ms += 1000;
    gs_say_line(GS_WARNING, GS_SAY_COPY, "sixth");
    SAID("gpushare: fourth\ngpushare: 3 more messages like the next\ngpushare: sixth\n");
    gs_say_line(GS_WARNING, GS_SAY_COPY, "seventh");
    gs_say_line(GS_WARNING, GS_SAY_COPY, "eighth");
    at_fork();
    gs_say_line(GS_WARNING, GS_SAY_COPY, "ninth");
    SAID("gpushare: seventh\ngpushare: ninth\n");
}

/* A message is one line, however long; and where nobody reads, or nothing can be written at once, it is left out. */
static void written(void) {
    struct gs_text text = {.length = sizeof text.bytes};
    memset(text.bytes, 'x', sizeof text.bytes);
    gs_say(GS_WARNING, GS_SAY_COPY, &text);
    const char *told = said();
    REQUIRE(strlen(told) == sizeof text.bytes && strncmp(told, "gpushare: xxx", 13) == 0);
    REQUIRE(strchr(told, '\n') == told + sizeof text.bytes - 1);
    text = (struct gs_text){.length = 2, .bytes = "\n\n"};
    gs_say(GS_WARNING, GS_SAY_COPY, &text);
    SAID("gpushare: \n");
    int there = dup(2), other[2];
    char byte;
    ssize_t held = 0;
    REQUIRE(pipe(other) == 0 && dup2(other[1], 2) == 2);
    fcntl(other[1], F_SETFL, O_NONBLOCK);
    while (write(other[1], "x", 1) == 1)
        held++;
    fcntl(other[1], F_SETFL, 0);
    gs_say_line(GS_WARNING, GS_SAY_COPY, "into a full pipe"); /* it would wait */
    clock_ms += 5000;
    for (; held > 0; held--)
        REQUIRE(read(other[0], &byte, 1) == 1 && byte == 'x');
    close(other[0]);
    gs_say_line(GS_WARNING, GS_SAY_COPY, "to nobody"); /* it would end the program */
    clock_ms += 5000;
    dup2(there, 2);
    close(there);
    close(other[1]);
}

int main(void) {
    saved_stderr = dup(2);
    if (pipe2(pipes, O_NONBLOCK) != 0 || dup2(pipes[1], 2) != 2)
        return 1;
    attach();
    attach_beside();
    refused();
    alone();
    no_page();
    a_large_limit();
    forgotten();
    detach();
    another();
    texts();
    amounts();
    held_back();
    written();
    asks();
    says_no();
    empty_answers();
    credit_meanwhile();
    another_is_faster();
    pools_first();
    pools_keep_their_reserve();
    unknown_line();
    driver_failed();
    totals();
    begin(100, 40);
    daemon_.outcome = GS_NO_DAEMON;
    REQUIRE(gs_account_attach(&gpu) && alone_said == 1);
    fork_of_account();
    REQUIRE(alone_said == 0);
    gs_pages_drop(gpu.line, GS_PAGE_BYTES);
    dup2(saved_stderr, 2);
    return good();
}
