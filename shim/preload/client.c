/* client.c: one connection for all threads.
 *
 * A thread with a request puts a slot into a list, sends its frame and waits for its answer. No thread of the library
 * serves the socket: one of the waiting threads reads (client.reading) and hands out the answers, the others sleep on
 * their slots. A reader that has its answer wakes the next. No lock is held while a thread sleeps.
 *
 * The daemon may die at any time. The process keeps its page and its credit, because the next daemon finds the page as
 * a file. The next request notices, connects again and presents the same page. A call within the job's request waits as
 * long as a claim does (gs_client_patience). Any other call waits for AWAY_PATIENCE_MS at most. If the daemon is still
 * away then, further calls do not wait for it during AWAY_PAUSE_MS.
 */
#include "client.h"

#include <string.h>

#include "descriptor.h"
#include "lock.h"
#include "moments.h"
#include "options.h"
#include "packet.h"
#include "system.h"

#define AWAY_PATIENCE_MS    2000 /* how long a caller waits for a daemon that is away */
#define AWAY_PAUSE_MS       5000 /* how long after that no caller waits again */
#define HELLO_PATIENCE_MS   5000
#define DEFAULT_PATIENCE_MS 60000
#define ANSWER_MARGIN_MS    2000 /* on top of the daemon's own patience */
#define FIRST_PAUSE_MS      50   /* between two attempts to connect, doubling */
#define LONGEST_PAUSE_MS    500  /* up to this: a daemon that has come back is found soon */
#define LOSSES              3    /* connections that a request may lose, if it is not guaranteed */
#define NOTE_AFTER_MS       1000
#define TELL_PATIENCE_MS    500

enum slot_state { WAITING, DONE, LOST };

struct slot {
    uint32_t seq;
    enum slot_state state;
    uint32_t wakeups; /* futex */
    struct gs_answer *answer;
    struct slot *next;
};

enum link_state { NEVER, CONNECTED, DISCONNECTED, REFUSED, ABSENT };

static struct {
    struct gs_lock lock; /* guards all below; never held across a system call that waits */
    enum link_state state;
    bool reading;     /* a thread is in read_frame */
    bool connecting;  /* a thread is in connect_now */
    uint32_t changes; /* futex: counts the ends of connect_now */
    uint32_t seq;
    uint32_t patience_ms;
    uint64_t away_until; /* no caller waits for the daemon before that */
    struct gs_descriptor socket, page_file;
    struct gs_page *page;
    bool page_lost; /* the host has closed page_file, and the daemon does not know us without it */
    bool no_use;    /* the daemon that is there is not for us */
    struct slot *slots;
} client = {.socket = {.fd = -1}, .page_file = {.fd = -1}};

/* ---- the first exchange --------------------------------------------------------------------------- */

static int dial_any(void) {
    const struct gs_options *options = gs_options();
    int fd = -ENOENT;
    for (size_t i = 0; i < sizeof options->sockets / sizeof *options->sockets && fd < 0; i++)
        fd = gs_packet_connect(options->sockets[i]);
    return fd;
}

static void fill_hello(struct gs_frame *frame, bool has_page) {
    const struct gs_options *options = gs_options();
    struct gs_hello *hello = &frame->u.hello;
    memset(frame, 0, sizeof *frame);
    frame->type = GS_HELLO;
    gs_packet_fill_header(frame, 0);
    hello->job_id = options->job_id;
    hello->pid = (uint32_t)GS_CALL(SYS_getpid);
    hello->request = options->request;
    hello->limit = options->limit;
    hello->priority = options->priority;
    hello->grace_ms = options->grace_ms;
    hello->steps = options->steps;
    hello->min_run_ms = options->min_run_ms;
    memcpy(hello->name, options->name, sizeof hello->name);
    if (has_page) {
        hello->flags = GS_HELLO_HAS_PAGE;
        hello->page_id = client.page->page_id;
    }
}

static bool page_is_sound(const struct gs_page *page) {
    return page->magic == GS_PAGE_MAGIC && page->version >= GS_PAGE_OLDEST && page->size == GS_PAGE_BYTES;
}

/* Map the page that came with the welcome. */
static bool take_page(int fd) {
    struct stat status;
    struct gs_page *page = NULL;
    if (GS_CALL(SYS_fstat, fd, &status) == 0 && status.st_size >= GS_PAGE_BYTES)
        page = gs_pages_of_file(fd, GS_PAGE_BYTES);
    if (page == NULL || !page_is_sound(page)) {
        gs_pages_drop(page, GS_PAGE_BYTES);
        gs_packet_drop(fd);
        return false;
    }
    client.page_file = gs_descriptor_of(gs_descriptor_move_high(fd));
    __atomic_store_n(&client.page, page, __ATOMIC_RELEASE);
    return true;
}

static void say_refused(const char *said) {
    struct gs_text text = {0};
    char reason[GS_TEXT_BYTES + 1] = {0};
    memcpy(reason, said, GS_TEXT_BYTES);
    gs_text_add(&text, reason[0] != '\0' ? reason : "the gpushare daemon refuses this process");
    gs_say(GS_ERROR, GS_SAY_DAEMON, &text);
}

/* The daemon's welcome, waited for. 1: there is one. */
static long await_welcome(int fd, struct gs_frame *frame, int *passed) {
    uint64_t until = gs_now_ms() + HELLO_PATIENCE_MS;
    for (;;) {
        long got = gs_packet_receive(fd, frame, passed);
        uint64_t now = gs_now_ms();
        if (got > 0 && frame->type != GS_WELCOME) {
            if (frame->type == GS_ANSWER) /* it does not speak our version, perhaps */
                say_refused(frame->u.answer.text);
            gs_packet_drop(*passed);
            return -EPROTO;
        }
        if (got != 0)
            return got;
        if (now >= until)
            return -ETIMEDOUT;
        gs_poll_fd(fd, POLLIN, until - now);
    }
}

/* Act on a welcome. Takes the descriptor over. */
static enum link_state judge(const struct gs_frame *frame, int passed) {
    const struct gs_welcome *welcome = &frame->u.welcome;
    bool wanted = welcome->status == GS_OK && client.page == NULL;
    if (!wanted)
        gs_packet_drop(passed);
    switch (welcome->status) {
    case GS_OK:
        break;
    case GS_NOT_ADMITTED:
    case GS_NOT_ALLOWED:
        say_refused(welcome->text);
        return REFUSED;
    case GS_SHUTTING_DOWN:
        return DISCONNECTED;
    default: /* it knows no such job, or does not understand: of no use to us */
        say_refused(welcome->text);
        client.no_use = true;
        return ABSENT;
    }
    uint32_t patience = welcome->patience_ms != 0 ? welcome->patience_ms : DEFAULT_PATIENCE_MS;
    __atomic_store_n(&client.patience_ms, patience, __ATOMIC_RELAXED);
    if (!wanted)
        return welcome->page_id == client.page->page_id ? CONNECTED : ABSENT;
    client.no_use = !take_page(passed);
    return client.no_use ? ABSENT : CONNECTED;
}

/* One attempt. Only the thread that has set client.connecting is here. */
static enum link_state connect_now(struct gs_descriptor *connection) {
    struct gs_frame frame;
    int passed;
    bool has_page = client.page != NULL;
    bool closed =
        has_page && !gs_descriptor_is_ours(client.page_file); /* a daemon that knows us by our pid needs it no more */
    if (client.page_lost)
        return DISCONNECTED;
    int fd = dial_any();
    if (fd < 0)
        return fd == -ENOENT || fd == -ECONNREFUSED || fd == -ENOTDIR || fd == -EACCES ? ABSENT : DISCONNECTED;
    fill_hello(&frame, has_page);
    long result = gs_packet_send(fd, &frame, closed ? -1 : client.page_file.fd);
    if (result == 0)
        result = await_welcome(fd, &frame, &passed);
    enum link_state state = result > 0 ? judge(&frame, passed) : DISCONNECTED;
    if (closed && state == ABSENT) {
        gs_say_line(GS_WARNING, GS_SAY_DAEMON,
                    "the program has closed our descriptors, and the daemon does not find this process's page without "
                    "them: the process keeps the memory it may use now and gets no more");
        client.page_lost = true;
    }
    if (state == CONNECTED)
        *connection = gs_descriptor_of(fd);
    else
        GS_CALL(SYS_close, fd);
    return state;
}

/* ---- staying connected ---------------------------------------------------------------------------- */

/* Under the lock: this connection brings no more answers. */
static void lose_connection(void) {
    gs_descriptor_close(&client.socket);
    if (client.state == CONNECTED)
        client.state = DISCONNECTED;
    for (struct slot *slot = client.slots; slot != NULL; slot = slot->next) {
        if (slot->state == WAITING)
            slot->state = LOST;
        __atomic_fetch_add(&slot->wakeups, 1, __ATOMIC_RELEASE);
        gs_futex_wake(&slot->wakeups, 1);
    }
}

/* Before a process has ever had a daemon, "not there" is an answer (unless `gpushare run` says that there must be
 * one); afterwards it may come back. */
static bool gives_up(enum link_state state) {
    return state == ABSENT && client.page == NULL && (client.no_use || gs_options()->job_id == 0);
}

/* Connected, or why not. Waits for a thread that is connecting already, and for a daemon that is away, until
 * `until`; only a guaranteed request does so while AWAY_PAUSE_MS lasts. */
static enum gs_outcome ensure_connected(uint64_t until, bool guaranteed) {
    uint64_t pause = FIRST_PAUSE_MS;
    for (;;) {
        gs_lock(&client.lock);
        enum link_state state = client.state;
        bool mine = state != CONNECTED && state != REFUSED && state != ABSENT && !client.connecting;
        uint32_t changes = client.changes;
        if (mine)
            client.connecting = true;
        gs_unlock(&client.lock);
        if (state == CONNECTED)
            return GS_ANSWERED;
        if (state == REFUSED)
            return GS_TURNED_AWAY;
        if (state == ABSENT)
            return GS_NO_DAEMON;

        uint64_t now = gs_now_ms();
        if (!mine) {
            if (now >= until)
                return GS_AWAY;
            gs_futex_wait(&client.changes, changes, until - now);
            continue;
        }
        struct gs_descriptor connection;
        state = connect_now(&connection);
        now = gs_now_ms();
        bool again = (state == DISCONNECTED || state == ABSENT) && !gives_up(state);
        bool over = now >= until || (client.away_until > now && !guaranteed) || client.page_lost;
        gs_lock(&client.lock);
        if (state == CONNECTED)
            client.socket = connection;
        client.connecting = false;
        client.changes++;
        client.state = !again ? state : over && client.page == NULL ? ABSENT : DISCONNECTED;
        if (over && client.away_until <= now)
            client.away_until = now + AWAY_PAUSE_MS;
        if (!again)
            client.away_until = 0;
        gs_unlock(&client.lock);
        gs_futex_wake(&client.changes, INT_MAX);
        if (!again)
            continue;
        if (over)
            return client.page == NULL ? GS_NO_DAEMON : GS_AWAY;
        gs_sleep_us((pause < until - now ? pause : until - now) * 1000);
        pause = pause * 2 < LONGEST_PAUSE_MS ? pause * 2 : LONGEST_PAUSE_MS;
    }
}

/* Hand an answer to its slot. There may be none: its caller has stopped waiting. Credit is in the page already. */
static void hand_out(const struct gs_frame *frame) {
    gs_lock(&client.lock);
    for (struct slot *slot = client.slots; slot != NULL; slot = slot->next) {
        if (slot->seq != frame->seq || slot->state != WAITING)
            continue;
        *slot->answer = frame->u.answer;
        slot->answer->text[sizeof slot->answer->text - 1] = '\0';
        slot->state = DONE;
        __atomic_fetch_add(&slot->wakeups, 1, __ATOMIC_RELEASE);
        gs_futex_wake(&slot->wakeups, 1);
    }
    gs_unlock(&client.lock);
}

/* Wait for a frame at most so long, and hand it out. Only the thread that has set client.reading is here. */
static void read_frame(struct gs_descriptor socket, uint64_t milliseconds) {
    struct gs_frame frame;
    int passed;
    gs_poll_fd(socket.fd, POLLIN, milliseconds);
    long got = gs_descriptor_is_ours(socket) ? gs_packet_receive(socket.fd, &frame, &passed) : -EBADF;
    if (got > 0) {
        gs_packet_drop(passed);
        if (frame.type == GS_ANSWER)
            hand_out(&frame);
    } else if (got < 0) {
        gs_lock(&client.lock);
        if (gs_descriptor_is_same(client.socket, socket))
            lose_connection();
        gs_unlock(&client.lock);
    }
}

/* Under the lock: take the slot out; if no thread reads now, wake one of the waiting ones to read. */
static void leave(struct slot *slot) {
    for (struct slot **at = &client.slots; *at != NULL; at = &(*at)->next) {
        if (*at == slot) {
            *at = slot->next;
            break;
        }
    }
    if (!client.reading && client.slots != NULL) {
        __atomic_fetch_add(&client.slots->wakeups, 1, __ATOMIC_RELEASE);
        gs_futex_wake(&client.slots->wakeups, 1);
    }
}

/* Wait until the slot is DONE or LOST, or the time is over (WAITING). */
static enum slot_state await(struct slot *slot, uint64_t started, uint64_t until, const struct gs_text *waiting) {
    for (;;) {
        uint64_t now = gs_now_ms();
        uint64_t next = waiting != NULL && now < started + NOTE_AFTER_MS ? started + NOTE_AFTER_MS : until;
        if (waiting != NULL && now >= started + NOTE_AFTER_MS) {
            gs_say(GS_WARNING, GS_SAY_WAITING, waiting);
            waiting = NULL;
        }
        gs_lock(&client.lock);
        enum slot_state state = slot->state;
        if (state != WAITING || now >= until) {
            leave(slot);
            gs_unlock(&client.lock);
            return state;
        }
        bool reader = !client.reading;
        client.reading = true;
        struct gs_descriptor socket = client.socket;
        uint32_t wakeups = __atomic_load_n(&slot->wakeups, __ATOMIC_ACQUIRE);
        gs_unlock(&client.lock);
        if (!reader) {
            gs_futex_wait(&slot->wakeups, wakeups, next - now);
            continue;
        }
        read_frame(socket, next - now);
        gs_lock(&client.lock);
        client.reading = false;
        gs_unlock(&client.lock);
    }
}

/* Send and wait on the connection that is there now. */
static enum slot_state exchange(struct gs_frame *frame, struct gs_answer *answer, uint64_t patience,
                                const struct gs_text *waiting) {
    struct slot slot = {.state = WAITING, .answer = answer};
    uint64_t started = gs_now_ms();
    gs_lock(&client.lock);
    bool connected = client.state == CONNECTED;
    struct gs_descriptor socket = client.socket;
    slot.seq = ++client.seq != 0 ? client.seq : ++client.seq;
    slot.next = client.slots;
    client.slots = &slot;
    gs_unlock(&client.lock);
    gs_packet_fill_header(frame, slot.seq);
    if (!connected || !gs_descriptor_is_ours(socket) || gs_packet_send(socket.fd, frame, -1) != 0) {
        gs_lock(&client.lock);
        if (connected && gs_descriptor_is_same(client.socket, socket))
            lose_connection();
        leave(&slot);
        gs_unlock(&client.lock);
        return LOST;
    }
    return await(&slot, started, started + patience, waiting);
}

uint64_t gs_client_patience(void) {
    uint32_t patience = __atomic_load_n(&client.patience_ms, __ATOMIC_RELAXED);
    return patience != 0 ? patience : DEFAULT_PATIENCE_MS;
}

enum gs_outcome gs_client_request(struct gs_frame *frame, struct gs_answer *answer, const struct gs_text *waiting,
                                  bool guaranteed) {
    uint64_t now = gs_now_ms(), end = now + gs_client_patience() + ANSWER_MARGIN_MS;
    for (int losses = 0; guaranteed ? now < end : losses < LOSSES; losses++, now = gs_now_ms()) {
        if (guaranteed && losses > 1) /* a daemon that ends each time must not be asked as fast as it starts */
            gs_sleep_us(losses < 8 ? (FIRST_PAUSE_MS * 1000u) << (losses - 2) : LONGEST_PAUSE_MS * 1000u);
        enum gs_outcome outcome = ensure_connected(guaranteed ? end : gs_now_ms() + AWAY_PATIENCE_MS, guaranteed);
        if (outcome != GS_ANSWERED)
            return outcome;
        switch (exchange(frame, answer, gs_client_patience() + ANSWER_MARGIN_MS, waiting)) {
        case DONE:
            return GS_ANSWERED;
        case WAITING:
            return GS_NO_ANSWER;
        default: /* lost: connect again and repeat. Credit that came meanwhile is in the page */
            break;
        }
    }
    return GS_AWAY;
}

void gs_client_tell(struct gs_frame *frame) {
    struct gs_answer answer;
    exchange(frame, &answer, TELL_PATIENCE_MS, NULL); /* that fails at once where there is no connection */
}

struct gs_page *gs_client_page(void) {
    return __atomic_load_n(&client.page, __ATOMIC_ACQUIRE);
}

int gs_client_descriptor(void) {
    return client.socket.fd;
}

void gs_client_forget(void) {
    gs_descriptor_close(&client.socket);
    gs_descriptor_close(&client.page_file);
    gs_pages_drop(client.page, GS_PAGE_BYTES);
    memset(&client, 0, sizeof client);
    client.socket.fd = client.page_file.fd = -1;
}

GS_AT(fork) {
    gs_client_forget();
}
