/* part_client.c: the connection to a daemon that is made up, on a clock that the program sets.
 *
 * The daemon may be absent, slow, gone in the middle, or not for this process; the host may close our descriptors. */
#define _GNU_SOURCE /* memfd_create */
#include <sys/mman.h>

#include "part.h"

static uint64_t clock_ms = 1000000;
static uint64_t slept[64]; /* microseconds */
static int sleeps;
static uint64_t waited_ms;
static uint32_t *waited_on, *woken;
static int wakes, woken_count;
static void (*while_waiting)(void);

static uint64_t now_of_test(void) {
    return clock_ms;
}

static void sleep_of_test(uint64_t microseconds) {
    slept[sleeps++ % 64] = microseconds;
    clock_ms += microseconds / 1000;
}

static void wait_of_test(uint32_t *word, uint32_t value, uint64_t milliseconds) {
    REQUIRE(*word == value && locks_held == 0);
    waited_on = word;
    waited_ms = milliseconds;
    if (while_waiting != NULL)
        while_waiting();
    else
        clock_ms += milliseconds;
}

static void wake_of_test(uint32_t *word, int waiters) {
    woken = word;
    woken_count = waiters;
    wakes++;
}

static long poll_of_test(int fd, short events, uint64_t milliseconds);

#define gs_now_ms()                    now_of_test()
#define gs_sleep_us(microseconds)      sleep_of_test(microseconds)
#define gs_futex_wait(word, value, ms) wait_of_test(word, value, ms)
#define gs_futex_wake(word, waiters)   wake_of_test(word, waiters)
#define gs_poll_fd(fd, events, ms)     poll_of_test(fd, events, ms)

#include "client.c"

#undef gs_poll_fd

/* ---- what the client says ------------------------------------------------------------------------- */

static struct gs_options options;
static char said[2048];
static int errors, warnings, notes;

const struct gs_options *gs_options(void) {
    return &options;
}

void gs_text_add(struct gs_text *text, const char *string) {
    size_t size = strlen(string);
    REQUIRE(text->length + size < sizeof text->bytes);
    memcpy(text->bytes + text->length, string, size);
    text->length += size;
}

void gs_say(enum gs_level level, enum gs_message_kind kind, const struct gs_text *text) {
    memcpy(said, text->bytes, text->length);
    said[text->length] = '\0';
    errors += level == GS_ERROR && kind == GS_SAY_DAEMON;
    notes += level == GS_WARNING && kind == GS_SAY_WAITING;
}

void gs_say_line(enum gs_level level, enum gs_message_kind kind, const char *line) {
    REQUIRE(level == GS_WARNING && kind == GS_SAY_DAEMON && strstr(line, "has closed our descriptors") != NULL);
    warnings++;
}

/* ---- the daemon ----------------------------------------------------------------------------------- */

struct arrival {
    uint64_t at;
    long result;
    struct gs_frame frame;
    int passed;
};

static struct arrival queue[32];
static int arrivals, taken;
static int connect_says[2]; /* by socket; 0: it takes the connection */
static int dials, hellos, requests;
static long send_says;
static struct gs_frame hello, request;
static int hello_passed; /* what came with it was a file: 1 */
static ino_t hello_file;

static struct {
    long result; /* 1: a welcome comes; else what receiving says; 0: nothing comes */
    uint16_t type;
    uint32_t status, patience;
    uint64_t page_id, after;
    const char *text;
    int (*file)(uint64_t page_id);
} welcome;

static struct {
    int lost; /* so many connections end instead of an answer */
    bool silent;
    uint64_t after; /* milliseconds */
} answering;

static void arrive(uint64_t after, long result, const struct gs_frame *frame, int passed) {
    struct arrival *one = &queue[arrivals++];
    REQUIRE(arrivals <= 32);
    *one = (struct arrival){.at = clock_ms + after, .result = result, .passed = passed};
    if (frame != NULL)
        one->frame = *frame;
}

static int a_file(void) {
    int fd = memfd_create("connection", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    return fd;
}

static void (*while_dialling)(void); /* what another thread does meanwhile */

int gs_packet_connect(const char *path) {
    REQUIRE(locks_held == 0);
    void (*meanwhile)(void) = while_dialling;
    while_dialling = NULL;
    if (meanwhile != NULL)
        meanwhile();
    int which = path == options.sockets[1];
    REQUIRE(which || path == options.sockets[0]);
    dials++;
    if (connect_says[which] != 0)
        return connect_says[which];
    while (taken < arrivals) /* they went with the last connection */
        gs_packet_drop(queue[taken++].passed);
    arrivals = taken = 0;
    return a_file();
}

void gs_packet_fill_header(struct gs_frame *frame, uint32_t seq) {
    frame->magic = GS_WIRE_MAGIC;
    frame->seq = seq;
}

void gs_packet_drop(int passed) {
    if (passed >= 0)
        REQUIRE(close(passed) == 0);
}

long gs_packet_send(int fd, const struct gs_frame *frame, int passed) {
    struct stat status;
    REQUIRE(locks_held == 0 && fd >= 0 && passed >= -1 && frame->magic == GS_WIRE_MAGIC);
    if (send_says != 0)
        return send_says;
    if (frame->type == GS_HELLO) {
        hellos++;
        hello = *frame;
        hello_passed = passed >= 0 && fstat(passed, &status) == 0;
        hello_file = hello_passed ? status.st_ino : 0;
        struct gs_frame answer = {.type = welcome.type};
        answer.u.welcome.status = welcome.status;
        answer.u.welcome.patience_ms = welcome.patience;
        answer.u.welcome.page_id = welcome.page_id;
        if (welcome.text != NULL && welcome.type == GS_WELCOME)
            strncpy(answer.u.welcome.text, welcome.text, sizeof answer.u.welcome.text);
        else if (welcome.text != NULL)
            strncpy(answer.u.answer.text, welcome.text, sizeof answer.u.answer.text);
        int file = welcome.result > 0 && welcome.file != NULL ? welcome.file(welcome.page_id) : -1;
        if (welcome.result != 0)
            arrive(welcome.after, welcome.result, &answer, file);
        return 0;
    }
    requests++;
    request = *frame;
    if (answering.lost > 0) {
        answering.lost--;
        arrive(0, -ECONNRESET, NULL, -1);
    } else if (!answering.silent) {
        struct gs_frame answer = {.type = GS_ANSWER, .seq = frame->seq};
        answer.u.answer.granted = frame->seq;
        memset(answer.u.answer.text, 'x', sizeof answer.u.answer.text);
        arrive(answering.after, 1, &answer, -1);
    }
    return 0;
}

long gs_packet_receive(int fd, struct gs_frame *frame, int *passed) {
    REQUIRE(fd >= 0 && locks_held == 0);
    *passed = -1;
    if (taken == arrivals || queue[taken].at > clock_ms)
        return 0;
    struct arrival *one = &queue[taken++];
    *frame = one->frame;
    *passed = one->passed;
    return one->result;
}

static long poll_of_test(int fd, short events, uint64_t milliseconds) {
    REQUIRE(fd >= 0 && events == POLLIN && locks_held == 0);
    uint64_t until = clock_ms + milliseconds;
    if (taken < arrivals && queue[taken].at < until)
        until = queue[taken].at > clock_ms ? queue[taken].at : clock_ms;
    clock_ms = until;
    return taken < arrivals && queue[taken].at <= clock_ms;
}

/* ---- pages ---------------------------------------------------------------------------------------- */

static uint64_t page_magic;
static uint32_t page_version, page_size_said;
static size_t page_bytes;

static int page_file(uint64_t id) {
    int fd = memfd_create("page", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && ftruncate(fd, (off_t)page_bytes) == 0);
    if (page_bytes > 0) { /* what is a little shorter can be mapped, too */
        struct gs_page *page = mmap(NULL, GS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        REQUIRE(page != MAP_FAILED);
        page->magic = page_magic;
        page->version = page_version;
        page->size = page_size_said;
        page->page_id = id;
        munmap(page, GS_PAGE_BYTES);
    }
    return fd;
}

/* How many pages are mapped. */
static int mapped_pages(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int count = 0;
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "/memfd:page") != NULL;
    fclose(maps);
    return count;
}

/* As at the start of a process, with a daemon that is there and welcomes it. */
static void begin(void) {
    gs_client_forget();
    while (taken < arrivals)
        gs_packet_drop(queue[taken++].passed);
    arrivals = taken = dials = hellos = requests = sleeps = errors = warnings = notes = wakes = 0;
    send_says = connect_says[0] = connect_says[1] = 0;
    page_magic = GS_PAGE_MAGIC;
    page_version = GS_PAGE_VERSION;
    page_size_said = GS_PAGE_BYTES;
    page_bytes = GS_PAGE_BYTES;
    welcome.result = 1;
    welcome.type = GS_WELCOME;
    welcome.status = GS_OK;
    welcome.patience = 30000;
    welcome.page_id = 77;
    welcome.after = 0;
    welcome.text = NULL;
    welcome.file = page_file;
    memset(&answering, 0, sizeof answering);
    memset(&options, 0, sizeof options);
    while_waiting = NULL;
    clock_ms += 1000000;
}

static enum gs_outcome ask(bool guaranteed) {
    struct gs_frame frame = {.type = GS_ASK};
    struct gs_answer answer;
    memset(&answer, 0, sizeof answer);
    enum gs_outcome outcome = gs_client_request(&frame, &answer, NULL, guaranteed);
    if (outcome == GS_ANSWERED)
        REQUIRE(answer.granted == frame.seq && answer.text[382] == 'x' && answer.text[383] == '\0');
    REQUIRE(client.slots == NULL && !client.reading && !client.connecting && locks_held == 0);
    return outcome;
}

/* ---- the first exchange --------------------------------------------------------------------------- */

static void what_a_hello_says(void) {
    begin();
    options.job_id = 0xabcdef;
    options.request = (struct gs_amount){5, GS_AMOUNT_BYTES, 0};
    options.limit = (struct gs_amount){6, GS_AMOUNT_SHARE, 0};
    options.priority = -3;
    options.grace_ms = 1500;
    options.steps = GS_STEP_TRIM | GS_STEP_KILL;
    options.min_run_ms = 9;
    memset(options.name, 'n', sizeof options.name);
    REQUIRE(ask(false) == GS_ANSWERED && hellos == 1 && requests == 1 && dials == 1);
    const struct gs_hello *it = &hello.u.hello;
    REQUIRE(hello.type == GS_HELLO && hello.seq == 0 && it->job_id == 0xabcdef && it->pid == (uint32_t)getpid());
    REQUIRE(it->request.value == 5 && it->request.kind == GS_AMOUNT_BYTES && it->limit.value == 6);
    REQUIRE(it->priority == -3 && it->grace_ms == 1500 && it->steps == options.steps && it->min_run_ms == 9);
    REQUIRE(memcmp(it->name, options.name, sizeof it->name) == 0);
    REQUIRE(it->flags == 0 && it->page_id == 0 && !hello_passed);
    REQUIRE(gs_client_page()->page_id == 77 && gs_client_descriptor() >= 0 && client.page_file.fd >= 64);
    REQUIRE(gs_client_patience() == 30000 && errors == 0);
    REQUIRE(ask(true) == GS_ANSWERED && hellos == 1 && request.seq == 2 && wakes > 0);
}

static void which_socket(void) {
    begin();
    connect_says[0] = -ENOENT;
    REQUIRE(ask(false) == GS_ANSWERED && dials == 2);
    begin();
    connect_says[1] = -ENOENT;
    REQUIRE(ask(false) == GS_ANSWERED && dials == 1);
}

static void patience(void) {
    REQUIRE((gs_client_forget(), gs_client_patience()) == 60000);
    begin();
    welcome.patience = 0;
    REQUIRE(ask(false) == GS_ANSWERED && gs_client_patience() == 60000);
    begin();
    welcome.patience = 1;
    REQUIRE(ask(false) == GS_ANSWERED && gs_client_patience() == 1);
}

/* No daemon was ever there, and none must be: that is the answer, at once and from then on. */
static void without_a_daemon(void) {
    static const int absent[] = {-ENOENT, -ECONNREFUSED, -ENOTDIR, -EACCES};
    for (int i = 0; i < 4; i++) {
        begin();
        connect_says[0] = -ENOENT;
        connect_says[1] = absent[i];
        uint64_t began = clock_ms;
        REQUIRE(ask(i % 2) == GS_NO_DAEMON && dials == 2 && sleeps == 0 && clock_ms == began);
        connect_says[1] = 0;
        REQUIRE(ask(false) == GS_NO_DAEMON && ask(true) == GS_NO_DAEMON && dials == 2 && hellos == 0);
    }
}

/* `gpushare run` says that there must be one: it is waited for, with pauses that double up to half a second. */
static void a_daemon_that_must_be_there(void) {
    static const uint64_t pauses[] = {50000, 100000, 200000, 400000, 500000, 500000, 250000};
    for (int busy = 0; busy < 2; busy++) {
        begin();
        options.job_id = busy ? 0 : 5;
        connect_says[0] = -ENOENT;
        connect_says[1] = busy ? -EAGAIN : -ENOENT;
        uint64_t began = clock_ms;
        REQUIRE(ask(false) == GS_NO_DAEMON && clock_ms - began == AWAY_PATIENCE_MS);
        REQUIRE(sleeps == 7 && memcmp(slept, pauses, sizeof pauses) == 0 && dials == 16);
        connect_says[1] = 0;
        REQUIRE(ask(true) == GS_NO_DAEMON && dials == 16); /* the process goes on without */
    }
    begin();
    options.job_id = 5;
    connect_says[0] = -ENOENT;
    connect_says[1] = -ENOENT;
    uint64_t began = clock_ms;
    REQUIRE(ask(true) == GS_NO_DAEMON && clock_ms - began == DEFAULT_PATIENCE_MS + ANSWER_MARGIN_MS);
}

/* ---- what it may be told -------------------------------------------------------------------------- */

static void refusals(void) {
    static const struct {
        uint32_t status;
        enum gs_outcome outcome;
        int says;
    } told[] = {
        {GS_NOT_ADMITTED, GS_TURNED_AWAY, 1},
        {GS_NOT_ALLOWED, GS_TURNED_AWAY, 1},
        {GS_UNKNOWN, GS_NO_DAEMON, 1},
        {GS_BAD_FRAME, GS_NO_DAEMON, 1},
        {99, GS_NO_DAEMON, 1},
    };
    char text[GS_TEXT_BYTES + 1];
    memset(text, 'w', GS_TEXT_BYTES);
    text[GS_TEXT_BYTES] = '\0';
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        begin();
        int before = descriptors();
        options.job_id = 5;
        welcome.status = told[i].status;
        welcome.text = text;
        REQUIRE(ask(false) == told[i].outcome && errors == told[i].says && strcmp(said, text) == 0);
        REQUIRE(ask(true) == told[i].outcome && hellos == 1 && sleeps == 0); /* it is not asked again */
        REQUIRE(descriptors() == before && gs_client_page() == NULL && gs_client_descriptor() == -1);
    }
    begin();
    welcome.status = GS_NOT_ALLOWED;
    welcome.text = "!";
    REQUIRE(ask(false) == GS_TURNED_AWAY && strcmp(said, "!") == 0);
    begin();
    welcome.status = GS_NOT_ALLOWED;
    REQUIRE(ask(false) == GS_TURNED_AWAY && strcmp(said, "the gpushare daemon refuses this process") == 0);
}

static void a_daemon_that_is_about_to_end(void) {
    begin();
    int before = descriptors();
    welcome.status = GS_SHUTTING_DOWN;
    REQUIRE(ask(false) == GS_NO_DAEMON && hellos == 8 && errors == 0 && descriptors() == before);
}

static void welcomes_that_are_none(void) {
    static const struct {
        long result;
        uint16_t type;
        int says;
        bool late;
    } come[] = {
        {1, GS_ANSWER, 1, false},
        {1, GS_ASK, 0, false},
        {-ECONNRESET, GS_WELCOME, 0, false},
        {0, GS_WELCOME, 0, true},
    };
    for (int i = 0; i < 4; i++) {
        begin();
        int before = descriptors();
        welcome.result = come[i].result;
        welcome.type = come[i].type;
        welcome.text = "another version";
        uint64_t began = clock_ms;
        REQUIRE(ask(false) == GS_NO_DAEMON);
        REQUIRE(come[i].late ? hellos == 1 && clock_ms - began == HELLO_PATIENCE_MS : hellos == 8);
        REQUIRE(errors == come[i].says * hellos && (errors == 0 || strcmp(said, "another version") == 0));
        REQUIRE(descriptors() == before);
    }
    begin();
    send_says = -EPIPE;
    REQUIRE(ask(false) == GS_NO_DAEMON && hellos == 0 && dials == 8);
    begin();
    welcome.after = HELLO_PATIENCE_MS - 1; /* just in time */
    REQUIRE(ask(false) == GS_ANSWERED && hellos == 1);
}

/* A page that is none is of no use, and a daemon that gives it is not asked again. */
static void pages_that_are_none(void) {
    for (int wrong = 0; wrong < 6; wrong++) {
        begin();
        int before = descriptors();
        options.job_id = 5;
        page_magic += wrong == 0;
        page_version = wrong == 1 ? GS_PAGE_OLDEST - 1 : GS_PAGE_VERSION + 5;
        page_size_said -= wrong == 2;
        page_bytes -= wrong == 3;
        welcome.file = wrong == 4 ? NULL : page_file;
        if (wrong == 5) { /* of a later daemon: it is one */
            page_bytes += 4096;
            REQUIRE(ask(false) == GS_ANSWERED && gs_client_page() != NULL);
            continue;
        }
        REQUIRE(ask(false) == GS_NO_DAEMON && ask(true) == GS_NO_DAEMON && hellos == 1 && gs_client_page() == NULL);
        REQUIRE(descriptors() == before && client.no_use && mapped_pages() == 0);
    }
}

static int page_file_without_standard_input(uint64_t id) {
    close(STDIN_FILENO);
    return page_file(id);
}

/* In a program that has closed its standard input the next descriptor is 0. */
static void descriptor_nought_is_one(void) {
    begin();
    welcome.file = page_file_without_standard_input;
    REQUIRE(ask(false) == GS_ANSWERED && gs_client_page() != NULL && mapped_pages() == 1);
    begin();
    close(STDIN_FILENO);
    REQUIRE(ask(false) == GS_ANSWERED && dials == 1 && hellos == 1 && gs_client_descriptor() == STDIN_FILENO);
    gs_client_forget();
    REQUIRE(open("/dev/null", O_RDONLY) == STDIN_FILENO && mapped_pages() == 0);
}

/* ---- a daemon that goes --------------------------------------------------------------------------- */

static void lose(void) {
    gs_lock(&client.lock);
    lose_connection();
    gs_unlock(&client.lock);
    REQUIRE(client.state == DISCONNECTED && gs_client_descriptor() == -1);
}

static void the_next_daemon_is_shown_the_page(void) {
    begin();
    struct stat status;
    REQUIRE(ask(false) == GS_ANSWERED && fstat(client.page_file.fd, &status) == 0);
    struct gs_page *page = gs_client_page();
    int before = descriptors();
    lose();
    REQUIRE(ask(false) == GS_ANSWERED && hellos == 2 && gs_client_page() == page);
    REQUIRE(hello.u.hello.flags == GS_HELLO_HAS_PAGE && hello.u.hello.page_id == 77);
    REQUIRE(hello_passed && hello_file == status.st_ino);
    REQUIRE(descriptors() == before); /* the one that came along is not needed */
    lose();
    welcome.page_id =
        78; /* the daemon does not know this page, and made another: of no use to a process that has one */
    uint64_t began = clock_ms;
    REQUIRE(ask(false) == GS_AWAY && clock_ms - began == AWAY_PATIENCE_MS && descriptors() == before - 1);
    welcome.page_id = 77;
    REQUIRE(ask(true) == GS_ANSWERED && descriptors() == before);
}

/* A call waits for a daemon that is away; for some time after that the next ones do not, unless memory is guaranteed.
 */
static void away(void) {
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    lose();
    connect_says[0] = connect_says[1] = -ENOENT;
    uint64_t began = clock_ms;
    REQUIRE(ask(false) == GS_AWAY && clock_ms - began == AWAY_PATIENCE_MS);
    uint64_t paused = clock_ms;
    dials = 0;
    REQUIRE(ask(false) == GS_AWAY && clock_ms == paused && dials == 2); /* it is looked for once */
    began = clock_ms;
    REQUIRE(ask(true) == GS_AWAY && clock_ms - began == 30000 + ANSWER_MARGIN_MS);
    began = clock_ms; /* that took longer than the pause, and began another */
    REQUIRE(ask(false) == GS_AWAY && clock_ms == began);
    clock_ms += AWAY_PAUSE_MS - 1;
    began = clock_ms;
    REQUIRE(ask(false) == GS_AWAY && clock_ms == began); /* the pause is not made longer by who looks meanwhile */
    clock_ms += 1;
    began = clock_ms;
    REQUIRE(ask(false) == GS_AWAY && clock_ms - began == AWAY_PATIENCE_MS);

    connect_says[0] = 0; /* it is back, and goes again: the pause is over */
    REQUIRE(ask(false) == GS_ANSWERED && client.away_until == 0);
    lose();
    connect_says[0] = -ENOENT;
    began = clock_ms;
    REQUIRE(ask(false) == GS_AWAY && clock_ms - began == AWAY_PATIENCE_MS);
}

static void answers_that_are_lost(void) {
    begin();
    answering.lost = 2;
    REQUIRE(ask(false) == GS_ANSWERED && requests == 3 && hellos == 3 && sleeps == 0);
    answering.lost = 3;
    REQUIRE(ask(false) == GS_AWAY && requests == 6 && sleeps == 0);
    begin();
    answering.lost = 12; /* a guaranteed request goes on, and waits longer and longer between two daemons */
    static const uint64_t pauses[] = {50, 100, 200, 400, 800, 1600, 500, 500, 500, 500, 500};
    REQUIRE(ask(true) == GS_ANSWERED && requests == 13 && sleeps == 11);
    for (int i = 0; i < 11; i++)
        REQUIRE(slept[i] == pauses[i] * 1000);
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    answering.lost = 1000;
    uint64_t began = clock_ms;
    REQUIRE(ask(true) == GS_AWAY);
    REQUIRE(clock_ms - began >= 30000 + ANSWER_MARGIN_MS && clock_ms - began < 30000 + ANSWER_MARGIN_MS + 500);
    answering.lost = 0;
    send_says = -EPIPE;
    requests = 0;
    lose();
    send_says = 0;
    REQUIRE(ask(false) == GS_ANSWERED && requests == 1);
}

static void a_frame_that_cannot_be_sent_is_lost(void) {
    struct gs_frame frame = {.type = GS_ASK};
    struct gs_answer answer;
    begin();
    REQUIRE(exchange(&frame, &answer, 100, NULL) == LOST && requests == 0); /* there is no connection */
    REQUIRE(ask(false) == GS_ANSWERED);
    send_says = -EPIPE;
    REQUIRE(exchange(&frame, &answer, 100, NULL) == LOST && client.state == DISCONNECTED);
    send_says = 0;
    REQUIRE(client.slots == NULL && ask(false) == GS_ANSWERED);
}

/* ---- answers -------------------------------------------------------------------------------------- */

static void an_answer_that_does_not_come(void) {
    struct gs_text waiting = {5, "waits"};
    struct gs_frame frame = {.type = GS_ASK};
    struct gs_answer answer;
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    answering.silent = true;
    uint64_t began = clock_ms;
    REQUIRE(gs_client_request(&frame, &answer, &waiting, false) == GS_NO_ANSWER);
    REQUIRE(clock_ms - began == 30000 + ANSWER_MARGIN_MS && notes == 1 && strcmp(said, "waits") == 0);
    REQUIRE(client.state == CONNECTED && client.slots == NULL && requests == 2);
    answering.silent = false;
    answering.after = NOTE_AFTER_MS - 1;
    REQUIRE(gs_client_request(&frame, &answer, &waiting, false) == GS_ANSWERED && notes == 1);
    answering.after = NOTE_AFTER_MS + 1;
    REQUIRE(gs_client_request(&frame, &answer, &waiting, true) == GS_ANSWERED && notes == 2);
}

static void answers_of_others(void) {
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    struct gs_answer theirs = {0};
    struct slot other = {.seq = 999, .state = WAITING, .answer = &theirs};
    client.slots = &other;
    struct gs_frame odd = {.type = GS_WELCOME, .seq = 999}, old = {.type = GS_ANSWER, .seq = 998};
    struct gs_frame mine = {.type = GS_ANSWER, .seq = 999};
    int before = descriptors();
    arrive(0, 1, &odd, a_file()); /* what is no answer is passed over, and what came with it is closed */
    arrive(0, 1, &old, a_file()); /* its caller has gone */
    mine.u.answer.granted = 7;
    arrive(0, 1, &mine, -1);
    struct gs_frame frame = {.type = GS_ASK};
    struct gs_answer answer;
    answering.silent = true;
    REQUIRE(exchange(&frame, &answer, 50, NULL) == WAITING);
    REQUIRE(descriptors() == before && other.state == DONE && theirs.granted == 7 && other.wakeups == 2);
    REQUIRE(client.slots == &other && woken == &other.wakeups && woken_count == 1); /* it is woken to read */
    mine.u.answer.granted = 8;
    hand_out(&mine);
    REQUIRE(theirs.granted == 7); /* the first answer counts */
    client.slots = NULL;
}

static void the_end_of_a_connection_wakes_all(void) {
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    struct slot third = {.state = DONE}, second = {.state = WAITING, .next = &third};
    struct slot first = {.state = WAITING, .next = &second};
    client.slots = &first;
    wakes = 0;
    lose();
    REQUIRE(first.state == LOST && second.state == LOST && third.state == DONE && wakes == 3);
    REQUIRE(first.wakeups == 1 && second.wakeups == 1 && third.wakeups == 1 && woken_count == 1);
    client.state = REFUSED;
    gs_lock(&client.lock);
    lose_connection();
    leave(&second);
    gs_unlock(&client.lock);
    REQUIRE(client.state == REFUSED && first.next == &third && first.wakeups == 3); /* and is woken to read */
    client.reading = true;
    gs_lock(&client.lock);
    leave(&third);
    gs_unlock(&client.lock);
    REQUIRE(first.next == NULL && first.wakeups == 3); /* somebody reads already */
    client.reading = false;
    gs_lock(&client.lock);
    leave(&first);
    gs_unlock(&client.lock);
    REQUIRE(client.slots == NULL);
}

static void seq_is_never_nought(void) {
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    client.seq = UINT32_MAX - 1;
    REQUIRE(ask(false) == GS_ANSWERED && request.seq == UINT32_MAX);
    REQUIRE(ask(false) == GS_ANSWERED && request.seq == 1);
    REQUIRE(ask(false) == GS_ANSWERED && request.seq == 2);
}

/* ---- other threads -------------------------------------------------------------------------------- */

static void it_connects(void) {
    client.socket = gs_descriptor_of(a_file());
    client.state = CONNECTED;
    client.connecting = false;
    client.changes++;
    clock_ms += 10;
}

static void one_thread_connects_for_all(void) {
    begin();
    client.connecting = true;
    while_waiting = it_connects;
    REQUIRE(ensure_connected(clock_ms + 100, false) == GS_ANSWERED);
    REQUIRE(waited_on == &client.changes && waited_ms == 100 && dials == 0);
    begin();
    client.connecting = true;
    uint64_t began = clock_ms;
    REQUIRE(ensure_connected(clock_ms + 100, true) == GS_AWAY && clock_ms - began == 100 && dials == 0);
    client.connecting = false;
    REQUIRE(ensure_connected(clock_ms + 100, true) == GS_ANSWERED && client.changes == 1);
    REQUIRE(woken == &client.changes && woken_count == INT_MAX);
}

static struct slot *mine;

static void it_reads(void) {
    struct gs_frame frame = {.type = GS_ANSWER, .seq = client.slots->seq};
    mine = client.slots;
    REQUIRE(client.reading);
    clock_ms += 20;
    wakes = 0;
    hand_out(&frame);
    REQUIRE(wakes == 1 && woken == &mine->wakeups && woken_count == 1);
    client.reading = false;
}

static void one_thread_reads_for_all(void) {
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    answering.silent = true;
    client.reading = true;
    while_waiting = it_reads;
    struct gs_frame frame = {.type = GS_ASK};
    struct gs_answer answer;
    REQUIRE(exchange(&frame, &answer, 5000, NULL) == DONE && waited_ms == 5000 && waited_on == &mine->wakeups);
    client.reading = true;
    struct gs_text waiting = {5, "waits"};
    REQUIRE(exchange(&frame, &answer, 5000, &waiting) == DONE && waited_ms == NOTE_AFTER_MS && notes == 0);
    while_waiting = NULL;
    client.reading = true;
    REQUIRE(exchange(&frame, &answer, 5000, &waiting) == WAITING && notes == 1);
}

/* ---- a host that closes what it does not know ------------------------------------------------------ */

static void steal(int fd) {
    int file = a_file();
    REQUIRE(dup2(file, fd) == fd);
    close(file);
}

static void a_connection_that_the_host_has_closed(void) {
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    int fd = gs_client_descriptor();
    steal(fd);
    REQUIRE(ask(false) == GS_ANSWERED && hellos == 2 && gs_client_descriptor() != fd);
    REQUIRE(fcntl(fd, F_GETFD) >= 0); /* it is the host's now */
    close(fd);
    close(gs_client_descriptor());
    REQUIRE(ask(false) == GS_ANSWERED && hellos == 3);
    fd = gs_client_descriptor();
    answering.silent = true;
    steal(fd);
    struct gs_descriptor before = client.socket;
    struct gs_frame frame = {.type = GS_ASK};
    struct gs_answer answer;
    requests = 0; /* nothing is written into the host's file, and nothing read from it */
    REQUIRE(exchange(&frame, &answer, 10, NULL) == LOST && requests == 0 && client.state == DISCONNECTED);
    client.socket = before;
    client.state = CONNECTED;
    read_frame(before, 10);
    REQUIRE(client.state == DISCONNECTED && fcntl(fd, F_GETFD) >= 0);
    close(fd);
}

static void a_page_that_the_host_has_closed(void) {
    begin();
    REQUIRE(ask(false) == GS_ANSWERED);
    steal(client.page_file.fd);
    lose();
    REQUIRE(ask(false) == GS_ANSWERED && !hello_passed && hello.u.hello.flags == GS_HELLO_HAS_PAGE && warnings == 0);
    lose();
    connect_says[0] = connect_says[1] = -ENOENT; /* no daemon is there: nobody has said that it does not know us */
    REQUIRE(ask(false) == GS_AWAY && !client.page_lost && warnings == 0);
    connect_says[0] = 0;
    welcome.page_id = 78;
    uint64_t began = clock_ms;
    dials = 0;
    REQUIRE(ask(true) == GS_AWAY && client.page_lost && warnings == 1 && clock_ms == began && dials == 1);
    REQUIRE(ask(true) == GS_AWAY && ask(false) == GS_AWAY && dials == 1 && warnings == 1 && clock_ms == began);
    close(client.page_file.fd);
}

/* ---- the rest ------------------------------------------------------------------------------------- */

static void telling(void) {
    struct gs_frame frame = {.type = GS_TRIMMED};
    begin();
    gs_client_tell(&frame);
    REQUIRE(dials == 0 && requests == 0 && sleeps == 0);
    REQUIRE(ask(false) == GS_ANSWERED);
    gs_client_tell(&frame);
    REQUIRE(requests == 2 && request.type == GS_TRIMMED);
    answering.silent = true;
    uint64_t began = clock_ms;
    gs_client_tell(&frame);
    REQUIRE(clock_ms - began == TELL_PATIENCE_MS && client.state == CONNECTED && client.slots == NULL);
}

static void fork_forgets(void) {
    gs_client_forget();
    int before = descriptors();
    begin();
    REQUIRE(ask(false) == GS_ANSWERED && descriptors() == before + 2);
    struct gs_page *page = gs_client_page();
    unsigned char there;
    at_fork();
    REQUIRE(descriptors() == before && gs_client_page() == NULL && gs_client_descriptor() == -1);
    REQUIRE(client.page_file.fd == -1 && client.state == NEVER && client.seq == 0 && client.lock.held == 0);
    REQUIRE(mincore(page, GS_PAGE_BYTES, &there) != 0); /* it is not mapped any more */
    REQUIRE(ask(false) == GS_ANSWERED && hellos == 2 && hello.u.hello.flags == 0);
}

/* Another thread that asks meanwhile does not dial, too: it waits, here for no time. */
static void asks_beside_it(void) {
    int before = dials;
    REQUIRE(ensure_connected(gs_now_ms(), false) == GS_AWAY && dials == before);
}

static void only_one_thread_dials(void) {
    begin();
    while_dialling = asks_beside_it;
    REQUIRE(ask(false) == GS_ANSWERED && while_dialling == NULL && hellos == 1);
    REQUIRE(!client.connecting && ensure_connected(0, false) == GS_ANSWERED);
}

int main(void) {
    REQUIRE(gs_client_descriptor() == -1);
    what_a_hello_says();
    which_socket();
    patience();
    without_a_daemon();
    a_daemon_that_must_be_there();
    refusals();
    a_daemon_that_is_about_to_end();
    welcomes_that_are_none();
    pages_that_are_none();
    descriptor_nought_is_one();
    the_next_daemon_is_shown_the_page();
    away();
    answers_that_are_lost();
    a_frame_that_cannot_be_sent_is_lost();
    an_answer_that_does_not_come();
    answers_of_others();
    the_end_of_a_connection_wakes_all();
    seq_is_never_nought();
    one_thread_connects_for_all();
    only_one_thread_dials();
    one_thread_reads_for_all();
    a_connection_that_the_host_has_closed();
    a_page_that_the_host_has_closed();
    telling();
    fork_forgets();
    gs_client_forget();
    return good();
}
