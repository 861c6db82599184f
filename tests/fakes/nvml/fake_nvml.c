// A stand-in for NVIDIA's libnvidia-ml.so.1, so that the unmodified bindings run on a machine without a card.
//
// What the node looks like is read from the text file that FAKE_NVML_STATE names, again whenever that file changes
// (scenario.py writes it). What is set through this library lies in "<state>.set", where a second process sees it;
// events are lines appended to "<state>.events". A key that a card does not have is a call it does not support.
// Refuses to guess: a line of the state file that it cannot read ends the process.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10,
       NO_FUNCTION = 13, LOST = 15, IN_USE = 19, NO_MEMORY = 20, NO_ROOM = 23, BAD_VERSION = 25, UNKNOWN = 999 };
enum { CARDS = 16, NODE = CARDS, EVERY = -1, PAIRS = 64, MANY = 256, GIS = 16, CIS = 8, PATHS = 4096 };
typedef unsigned int u32;
typedef unsigned long long u64;
#define NONE_U64 (~0ULL)
#define NONE_U32 (~0U)

// ---------------------------------------------------------------- the state file

typedef struct { int pairs; char keys[PAIRS][24], values[PAIRS][104]; } card;
typedef struct { int card, value; char function[64]; } knob;
typedef struct { int card; u32 pid; u64 bytes; char kind; int gi, sm; } process;
typedef struct { int card, slot, id, slices, sms, count, size; u64 mib; char name[32], starts[64]; } profile;
typedef struct { int a, b, value; } edge;
typedef struct { char path[512]; u64 bytes; } held;

static struct {
    card cards[CARDS + 1];
    knob fails[MANY], hangs[MANY];
    process processes[MANY];
    profile profiles[MANY];
    edge levels[MANY], nvlinks[MANY];
    held helds[MANY];
    int count, fails_n, hangs_n, processes_n, profiles_n, levels_n, nvlinks_n, helds_n;
} state;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char state_path[PATHS];
static struct stat state_seen;
static int started;

static void read_line(const char *line) {
    int i;
    char key[24], value[104];
    knob k;
    process p;
    profile f;
    edge e;
    held h;
#define KEEP(list, item) do { if (state.list##_n == MANY) abort(); state.list[state.list##_n++] = (item); return; } while (0)
    if (line[0] == '\n') return;
    if (sscanf(line, "card %d %23s %103[^\n]", &i, key, value) == 3 || (i = NODE, sscanf(line, "node %23s %103[^\n]", key, value) == 2)) {
        card *c = &state.cards[i];
        if (i < 0 || i > NODE || c->pairs == PAIRS) abort();
        if (i < NODE && i >= state.count) state.count = i + 1;
        strcpy(c->keys[c->pairs], key);
        strcpy(c->values[c->pairs++], value);
        return;
    }
    if (sscanf(line, "fail %d %63s %d", &k.card, k.function, &k.value) == 3) KEEP(fails, k);
    if (sscanf(line, "hang %d %63s %d", &k.card, k.function, &k.value) == 3) KEEP(hangs, k);
    if (sscanf(line, "process %d %u %llu %c %d %d", &p.card, &p.pid, &p.bytes, &p.kind, &p.gi, &p.sm) == 6) KEEP(processes, p);
    if (sscanf(line, "profile %d %d %d %31s %llu %d %d %d %d %63s", &f.card, &f.slot, &f.id, f.name, &f.mib, &f.slices,
               &f.sms, &f.count, &f.size, f.starts) == 10) KEEP(profiles, f);
    if (sscanf(line, "topology %d %d %d", &e.a, &e.b, &e.value) == 3) KEEP(levels, e);
    if (sscanf(line, "nvlink %d %d %d", &e.a, &e.b, &e.value) == 3) KEEP(nvlinks, e);
    if (sscanf(line, "held %llu %511[^\n]", &h.bytes, h.path) == 2) KEEP(helds, h);
    fprintf(stderr, "fake_nvml: cannot read this line of %s: %s\n", state_path, line);
    abort();
}

static void load(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now = {0};
    if (path && stat(path, &now)) path = NULL;
    if (path && !strcmp(path, state_path) && now.st_ino == state_seen.st_ino && now.st_size == state_seen.st_size &&
        now.st_mtim.tv_sec == state_seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == state_seen.st_mtim.tv_nsec) return;
    memset(&state, 0, sizeof state);
    state_path[0] = 0;
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    snprintf(state_path, sizeof state_path, "%s", path);
    state_seen = now;
    for (char line[1024]; fgets(line, sizeof line, file);) read_line(line);
    fclose(file);
}

static const char *text(int i, const char *key) {
    const card *c = &state.cards[i];
    for (int k = 0; k < c->pairs; k++) if (!strcmp(c->keys[k], key)) return c->values[k];
    return NULL;
}

static double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

// The time of values that are told with it, while they are worked out: a pause in between must not make them lie. Each
// thread asks for itself.
static __thread double told_at_s;
static double now_s(void) { return told_at_s ? told_at_s : clock_s(); }

// A number: "17"; "20~95~60" swings between the first two once in so many seconds; "+1000" grows by so much a second.
static int number(int i, const char *key, double *out) {
    const char *value = text(i, key);
    double low, high, period;
    if (!value) return UNSUPPORTED;
    if (value[0] == '+') *out = atof(value + 1) * now_s();
    else if (sscanf(value, "%lf~%lf~%lf", &low, &high, &period) == 3) {
        double place = now_s() / period, part = place - (u64)place;
        *out = low + (high - low) * (part < 0.5 ? 2 * part : 2 - 2 * part);
    } else *out = strtod(value, NULL);
    return OK;
}

static int flag(int i, const char *key) {
    double value = 0;
    return number(i, key, &value) == OK && value != 0;
}

// ---------------------------------------------------------------- what was set: "<state>.set"

typedef struct { char kind[8], uuid[96], path[512]; u64 a, b, c, d; } setting;
static setting settings[MANY];
static int settings_n, settings_fd = -1;

static void beside(char *out, const char *suffix) { snprintf(out, PATHS + 16, "%s%s", state_path, suffix); }

static void recall(void) {
    char path[PATHS + 16];
    beside(path, ".set");
    settings_n = 0;
    settings_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (settings_fd < 0) abort();
    flock(settings_fd, LOCK_EX);
    FILE *file = fdopen(dup(settings_fd), "r");
    setting s;
    while (settings_n < MANY && fscanf(file, "%7s %95s %llu %llu %llu %llu %511[^\n]", s.kind, s.uuid, &s.a, &s.b, &s.c, &s.d, s.path) == 7)
        settings[settings_n++] = s;
    fclose(file);
}

static void forget_lock(void) { close(settings_fd); settings_fd = -1; }

static void keep(void) {
    if (ftruncate(settings_fd, 0) || lseek(settings_fd, 0, SEEK_SET)) abort();
    for (int i = 0; i < settings_n; i++) {
        const setting *s = &settings[i];
        dprintf(settings_fd, "%s %s %llu %llu %llu %llu %s\n", s->kind, s->uuid, s->a, s->b, s->c, s->d, s->path);
    }
}

static setting *find(const char *kind, const char *uuid, u64 a, u64 b, const char *path) {
    for (int i = 0; i < settings_n; i++) {
        setting *s = &settings[i];
        if (!strcmp(s->kind, kind) && !strcmp(s->uuid, uuid) && (a == NONE_U64 || s->a == a) &&
            (b == NONE_U64 || s->b == b) && (!path || !strcmp(s->path, path))) return s;
    }
    return NULL;
}

static setting *add(const char *kind, const char *uuid, const char *path) {
    if (settings_n == MANY) abort();
    setting *s = &settings[settings_n++];
    memset(s, 0, sizeof *s);
    strcpy(s->kind, kind);
    strcpy(s->uuid, uuid);
    strcpy(s->path, path);
    return s;
}

static void drop(setting *s) { *s = settings[--settings_n]; }

// ---------------------------------------------------------------- entering a call

typedef struct { char kind; int card, gi, ci; } object; // 'D' card, 'M' MIG device, 'G' and 'C' GPU and compute instance
static object devices[CARDS], migs[CARDS][GIS][CIS], gis[CARDS][GIS], cis[CARDS][GIS][CIS];

static object *make(object *o, char kind, int card_idx, int gi, int ci) {
    *o = (object){kind, card_idx, gi, ci};
    return o;
}

static int told(const knob *knobs, int n, const char *function, int i) {
    for (int k = 0; k < n; k++)
        if ((knobs[k].card == EVERY || knobs[k].card == i) && (knobs[k].function[0] == '*' || !strcmp(knobs[k].function, function)))
            return knobs[k].value;
    return 0;
}

static void leave(int *held_) { (void)held_; pthread_mutex_unlock(&mutex); }

static void pause_ms(int ms) {
    pthread_mutex_unlock(&mutex);
    usleep(ms * 1000);
    pthread_mutex_lock(&mutex);
}

// Called with the mutex held. A hang ends early when its line is taken from the state file.
static int enter(const char *function, int i) {
    load();
    double since = clock_s();
    while ((clock_s() - since) * 1000 < told(state.hangs, state.hangs_n, function, i)) { pause_ms(2); load(); }
    if (!started) return UNINITIALIZED;
    if (!state_path[0]) return UNKNOWN;
    if (i != EVERY && (i < 0 || i >= state.count)) return INVALID;
    if (i != EVERY && flag(i, "lost")) return LOST;
    return told(state.fails, state.fails_n, function, i);
}

#define API __attribute__((visibility("default"))) int
#define ENTER(i) \
    pthread_mutex_lock(&mutex); \
    int held_ __attribute__((cleanup(leave))) = 0; \
    int code_ = enter(__func__, (i)); \
    (void)held_; \
    if (code_) return code_
#define ON(o, what) if (!(o) || (o)->kind != (what)) return INVALID; ENTER((o)->card)
#define MIG_REFUSES(o) if (flag((o)->card, "mig")) return UNSUPPORTED
#define TEXT(o, key, out, size) do { const char *t_ = text((o)->card, key); if (!t_) return UNSUPPORTED; \
    if (strlen(t_) >= (size)) return TOO_SMALL; \
    strcpy(out, t_); \
    return OK; } while (0)
#define NUMBER(o, key, out) do { double v_; int c_ = number((o)->card, key, &v_); if (c_ == OK) *(out) = v_; return c_; } while (0)
#define UUID(o) text((o)->card, "uuid")

// ---------------------------------------------------------------- library, driver, handles

API nvmlInitWithFlags(u32 flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    int held_ __attribute__((cleanup(leave))) = 0;
    double code = 0;
    load();
    if (!state_path[0]) return 9; // DRIVER_NOT_LOADED
    if (number(NODE, "init", &code) == OK && code) return code;
    started++;
    return OK;
}
API nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    int held_ __attribute__((cleanup(leave))) = 0;
    if (!started) return UNINITIALIZED;
    started--;
    return OK;
}
__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    switch (code) {
    case IN_USE: return "In use by another client";
    case NO_ROOM: return "Insufficient Resources";
    case BAD_VERSION: return "Argument version mismatch";
    case LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}
API nvmlSystemGetDriverVersion(char *out, u32 size) { ENTER(EVERY); object node = {'N', NODE, 0, 0}; TEXT(&node, "driver", out, size); }
API nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(EVERY); object node = {'N', NODE, 0, 0}; NUMBER(&node, "cuda", out); }
API nvmlDeviceGetCount_v2(u32 *out) { ENTER(EVERY); *out = state.count; return OK; }
API nvmlDeviceGetHandleByIndex_v2(u32 i, object **out) { ENTER((int)i); *out = make(&devices[i], 'D', i, 0, 0); return OK; }
API nvmlDeviceGetHandleByUUID(const char *uuid, object **out) {
    ENTER(EVERY);
    for (int i = 0; i < state.count; i++)
        if (!strcmp(text(i, "uuid"), uuid)) {
            if (flag(i, "lost")) return LOST;
            *out = make(&devices[i], 'D', i, 0, 0);
            return OK;
        }
    return NOT_FOUND;
}

// ---------------------------------------------------------------- what a card is

static void mig_uuid(const object *o, char *out, u32 size) {
    u64 hash[2] = {0xcbf29ce484222325ULL, 0x84222325cbf29ce4ULL};
    char name[160];
    snprintf(name, sizeof name, "%s/%d/%d", UUID(o), o->gi, o->ci);
    for (int h = 0; h < 2; h++)
        for (const char *p = name; *p; p++) hash[h] = (hash[h] ^ (unsigned char)*p) * 0x100000001b3ULL;
    snprintf(out, size, "MIG-%08x-%04x-5%03x-a%03x-%012llx", (u32)(hash[0] >> 32), (u32)(hash[0] >> 16 & 0xffff),
             (u32)(hash[0] & 0xfff), (u32)(hash[1] >> 48 & 0xfff), hash[1] & 0xffffffffffffULL);
}
API nvmlDeviceGetUUID(object *o, char *out, u32 size) {
    if (!o || (o->kind != 'D' && o->kind != 'M')) return INVALID;
    ENTER(o->card);
    if (o->kind == 'M') { mig_uuid(o, out, size); return OK; }
    TEXT(o, "uuid", out, size);
}
API nvmlDeviceGetName(object *o, char *out, u32 size) { ON(o, 'D'); TEXT(o, "name", out, size); }
API nvmlDeviceGetMinorNumber(object *o, u32 *out) { ON(o, 'D'); NUMBER(o, "minor", out); }
typedef struct { char legacy[16]; u32 domain, bus, device, ids, subsystem; char bus_id[32]; } pci;
API nvmlDeviceGetPciInfo_v3(object *o, pci *out) {
    ON(o, 'D');
    const char *bus = text(o->card, "bus");
    if (!bus || sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return UNSUPPORTED;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", bus);
    snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return OK;
}
API nvmlDeviceGetCudaComputeCapability(object *o, int *major, int *minor) {
    ON(o, 'D');
    const char *value = text(o->card, "capability");
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? OK : UNSUPPORTED;
}

// ---------------------------------------------------------------- how a card is

typedef struct { u64 total, free, used; } memory_v1;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
static int memory_of(object *o, memory_v2 *m) {
    double total, reserved = 0, used = 0;
    if (number(o->card, "memory", &total)) return UNSUPPORTED;
    number(o->card, "reserved", &reserved);
    number(o->card, "used", &used);
    m->total = total; m->reserved = reserved; m->used = used;
    m->free = m->total - m->reserved - m->used;
    return OK;
}
API nvmlDeviceGetMemoryInfo(object *o, memory_v1 *out) {
    ON(o, 'D');
    memory_v2 m;
    if (memory_of(o, &m)) return UNSUPPORTED;
    *out = (memory_v1){m.total, m.free, m.used + m.reserved}; // v1 counts what is reserved as used
    return OK;
}
API nvmlDeviceGetMemoryInfo_v2(object *o, memory_v2 *out) {
    ON(o, 'D');
    return out->version == 0x02000028 ? memory_of(o, out) : BAD_VERSION;
}
typedef struct { u32 gpu, memory; } utilization;
API nvmlDeviceGetUtilizationRates(object *o, utilization *out) {
    ON(o, 'D');
    MIG_REFUSES(o);
    double gpu, memory;
    if (number(o->card, "gpu_util", &gpu) || number(o->card, "memory_util", &memory)) return UNSUPPORTED;
    *out = (utilization){gpu, memory};
    return OK;
}
API nvmlDeviceGetClockInfo(object *o, u32 type, u32 *out) {
    ON(o, 'D');
    NUMBER(o, type == 1 ? "sm_clock" : type == 2 ? "memory_clock" : "graphics_clock", out);
}
API nvmlDeviceGetCurrentClocksEventReasons(object *o, u64 *out) { ON(o, 'D'); NUMBER(o, "clock_events", out); }
API nvmlDeviceGetCurrentClocksThrottleReasons(object *o, u64 *out) { ON(o, 'D'); NUMBER(o, "clock_events", out); }
typedef struct { u32 version, sensor; int value; } temperature;
API nvmlDeviceGetTemperatureV(object *o, temperature *out) {
    ON(o, 'D');
    if (out->version != 0x100000C) return BAD_VERSION;
    NUMBER(o, "temperature", &out->value);
}
API nvmlDeviceGetTemperature(object *o, u32 sensor, u32 *out) { (void)sensor; ON(o, 'D'); NUMBER(o, "temperature", out); }
typedef struct { u32 version; int value; } margin;
API nvmlDeviceGetMarginTemperature(object *o, margin *out) {
    ON(o, 'D');
    if (out->version != 0x1000008) return BAD_VERSION;
    NUMBER(o, "margin", &out->value);
}
API nvmlDeviceGetPowerUsage(object *o, u32 *out) { ON(o, 'D'); NUMBER(o, "power_mw", out); }
API nvmlDeviceGetEnforcedPowerLimit(object *o, u32 *out) { ON(o, 'D'); NUMBER(o, "power_limit_mw", out); }
API nvmlDeviceGetPcieThroughput(object *o, u32 counter, u32 *out) {
    ON(o, 'D');
    pause_ms(20); // as the real one: it measures for 20 ms
    NUMBER(o, counter == 0 ? "pcie_tx_kb" : "pcie_rx_kb", out);
}
API nvmlDeviceGetTotalEccErrors(object *o, u32 type, u32 counter, u64 *out) {
    (void)counter;
    ON(o, 'D');
    MIG_REFUSES(o);
    NUMBER(o, type == 1 ? "ecc_uncorrected" : "ecc_corrected", out);
}
API nvmlDeviceGetRemappedRows(object *o, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    ON(o, 'D');
    MIG_REFUSES(o);
    if (!text(o->card, "rows_pending")) return UNSUPPORTED;
    *corrected = *uncorrected = 0;
    *pending = flag(o->card, "rows_pending");
    *failed = flag(o->card, "rows_failed");
    return OK;
}
typedef struct { u32 field, scope; int64_t at_us, latency_us; u32 type, code; union { u32 small; u64 large; } value; } field;
API nvmlDeviceGetFieldValues(object *o, int count, field *fields) {
    ON(o, 'D');
    told_at_s = clock_s();
    for (int i = 0; i < count; i++) {
        char key[24];
        double value = 0;
        snprintf(key, sizeof key, "field.%u", fields[i].field);
        fields[i].code = number(o->card, key, &value);
        fields[i].at_us = told_at_s * 1e6;
        fields[i].type = fields[i].field == 197 || fields[i].field == 198 ? 3 : 1;
        if (fields[i].type == 3) fields[i].value.large = value; else fields[i].value.small = value;
    }
    told_at_s = 0;
    return OK;
}

// ---------------------------------------------------------------- processes, compute mode, limits

typedef struct { u32 pid; u64 bytes; u32 gi, ci; } process_info;
static int processes_of(object *o, char kind, u32 *count, process_info *out) {
    u32 n = 0, room = *count;
    for (int k = 0; k < state.processes_n; k++) {
        const process *p = &state.processes[k];
        if (p->card != o->card || p->kind != kind) continue;
        if (out && n < room) out[n] = (process_info){p->pid, p->bytes, (u32)p->gi, p->gi < 0 ? NONE_U32 : 0};
        n++;
    }
    *count = n;
    return n > room ? TOO_SMALL : OK;
}
API nvmlDeviceGetComputeRunningProcesses_v3(object *o, u32 *count, process_info *out) { ON(o, 'D'); return processes_of(o, 'C', count, out); }
API nvmlDeviceGetMPSComputeRunningProcesses_v3(object *o, u32 *count, process_info *out) { ON(o, 'D'); return processes_of(o, 'M', count, out); }
typedef struct { u32 pid; u64 at_us; u32 sm, memory, encoder, decoder; } process_use;
API nvmlDeviceGetProcessUtilization(object *o, process_use *out, u32 *count, u64 since_us) {
    ON(o, 'D');
    MIG_REFUSES(o);
    u32 n = 0, room = *count;
    u64 now_us = clock_s() * 1e6;
    for (int k = 0; k < state.processes_n; k++) {
        const process *p = &state.processes[k];
        if (p->card != o->card || p->sm < 0 || now_us <= since_us) continue;
        if (out && n < room) out[n] = (process_use){p->pid, now_us, p->sm, 0, 0, 0};
        n++;
    }
    *count = n;
    return !n ? NOT_FOUND : n > room ? TOO_SMALL : OK;
}
API nvmlDeviceGetComputeMode(object *o, u32 *out) {
    ON(o, 'D');
    recall();
    setting *s = find("mode", UUID(o), NONE_U64, NONE_U64, NULL);
    *out = s ? s->a : 0;
    forget_lock();
    return OK;
}
API nvmlDeviceSetComputeMode(object *o, u32 mode) {
    ON(o, 'D');
    if (mode > 3 || mode == 1) return UNSUPPORTED; // 1, exclusive thread, is gone from real drivers
    recall();
    setting *s = find("mode", UUID(o), NONE_U64, NONE_U64, NULL);
    if (!s) s = add("mode", UUID(o), "-");
    s->a = mode;
    keep();
    forget_lock();
    return OK;
}
typedef struct { const char *path; u64 soft, hard; } limits_set;
typedef struct { const char *path; u64 soft, hard, used; } limits_got;
static int limits_refuse(object *o, const char *path) {
    if (!flag(NODE, "memory_limits")) return NO_FUNCTION; // a driver below R615
    if (flag(o->card, "mig")) return UNSUPPORTED;
    return path && path[0] == '/' && strlen(path) < 512 ? OK : INVALID;
}
API nvmlDeviceSetMemoryLimits_v1(object *o, limits_set *in) {
    ON(o, 'D');
    int code = limits_refuse(o, in->path);
    if (code) return code;
    if (in->soft > in->hard) return INVALID;
    recall();
    setting *s = find("limit", UUID(o), NONE_U64, NONE_U64, in->path);
    if (!s) s = add("limit", UUID(o), in->path);
    s->a = in->soft;
    s->b = in->hard;
    if (s->a == 0 && s->b == NONE_U64) drop(s);
    keep();
    forget_lock();
    return OK;
}
API nvmlDeviceGetMemoryLimits_v1(object *o, limits_got *out) {
    ON(o, 'D');
    int code = limits_refuse(o, out->path);
    if (code) return code;
    recall();
    setting *s = find("limit", UUID(o), NONE_U64, NONE_U64, out->path);
    out->soft = s ? s->a : 0;
    out->hard = s ? s->b : NONE_U64;
    out->used = 0;
    for (int k = 0; k < state.helds_n; k++) if (!strcmp(state.helds[k].path, out->path)) out->used += state.helds[k].bytes;
    forget_lock();
    return OK;
}

// ---------------------------------------------------------------- topology

static int between(const edge *edges, int n, object *a, object *b, int otherwise) {
    for (int k = n - 1; k >= 0; k--) // the line written last holds
        if ((edges[k].a == a->card && edges[k].b == b->card) || (edges[k].a == b->card && edges[k].b == a->card)) return edges[k].value;
    return otherwise;
}
API nvmlDeviceGetTopologyCommonAncestor(object *a, object *b, u32 *out) {
    ON(a, 'D');
    *out = between(state.levels, state.levels_n, a, b, 50);
    return OK;
}
API nvmlDeviceGetP2PStatus(object *a, object *b, u32 index, u32 *out) {
    ON(a, 'D');
    *out = index == 2 && !between(state.nvlinks, state.nvlinks_n, a, b, 0) ? 5 : 0;
    return OK;
}

// ---------------------------------------------------------------- events

typedef struct { long seen; u64 masks[CARDS]; } event_set;
typedef struct { object *device; u64 type, data; u32 gi, ci; } event;
API nvmlEventSetCreate(event_set **out) { ENTER(EVERY); *out = calloc(1, sizeof **out); if (*out) (*out)->seen = -1; return *out ? OK : NO_MEMORY; }
API nvmlEventSetFree(event_set *set) { ENTER(EVERY); free(set); return OK; }
API nvmlDeviceGetSupportedEventTypes(object *o, u64 *out) { ON(o, 'D'); NUMBER(o, "event_types", out); }
API nvmlDeviceRegisterEvents(object *o, u64 mask, event_set *set) {
    ON(o, 'D');
    double known;
    struct stat now;
    char path[PATHS + 16];
    if (number(o->card, "event_types", &known) || mask & ~(u64)known) return UNSUPPORTED;
    beside(path, ".events");
    if (set->seen < 0) set->seen = stat(path, &now) ? 0 : now.st_size; // only what comes after is told
    set->masks[o->card] |= mask;
    return OK;
}
static int next_event(event_set *set, event *out) {
    char path[PATHS + 16], line[128];
    beside(path, ".events");
    FILE *file = fopen(path, "r");
    int card_idx, found = 0;
    if (!file) return 0;
    fseek(file, set->seen < 0 ? 0 : set->seen, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        set->seen = ftell(file);
        if (sscanf(line, "%d %llx %llu %u %u", &card_idx, &out->type, &out->data, &out->gi, &out->ci) != 5) abort();
        found = card_idx >= 0 && card_idx < CARDS && set->masks[card_idx] & out->type;
        if (found) out->device = make(&devices[card_idx], 'D', card_idx, 0, 0);
    }
    fclose(file);
    return found;
}
API nvmlEventSetWait_v2(event_set *set, event *out, u32 timeout_ms) {
    ENTER(EVERY);
    for (double since = clock_s(); !next_event(set, out);) {
        if ((clock_s() - since) * 1000 >= timeout_ms) return TIMEOUT;
        pause_ms(25); // a real one sleeps in the kernel; seldom enough to cost nothing beside what is measured
        load();
    }
    return OK;
}

// ---------------------------------------------------------------- MIG

static const int CI_SLICES[] = {1, 2, 3, 4, 7, 8, 6}; // by the driver's enumeration of compute instance profiles
static const profile *profile_by(int card_idx, int slot, int id) {
    for (int k = 0; k < state.profiles_n; k++) {
        const profile *p = &state.profiles[k];
        if (p->card == card_idx && (slot < 0 || p->slot == slot) && (id < 0 || p->id == id)) return p;
    }
    return NULL;
}
API nvmlDeviceGetMigMode(object *o, u32 *current, u32 *pending) {
    ON(o, 'D');
    if (!text(o->card, "mig")) return UNSUPPORTED;
    *current = *pending = flag(o->card, "mig");
    return OK;
}
#define MIG_ON(o) if (!flag((o)->card, "mig")) return UNSUPPORTED
API nvmlDeviceGetMaxMigDeviceCount(object *o, u32 *out) { ON(o, 'D'); *out = text(o->card, "mig") ? 7 : 0; return OK; }
API nvmlDeviceGetMigDeviceHandleByIndex(object *o, u32 index, object **out) {
    ON(o, 'D');
    MIG_ON(o);
    recall();
    int code = NOT_FOUND;
    for (int i = 0; i < settings_n && code; i++) {
        const setting *s = &settings[i];
        if (strcmp(s->kind, "ci") || strcmp(s->uuid, UUID(o)) || index--) continue;
        *out = make(&migs[o->card][s->a][s->b], 'M', o->card, s->a, s->b);
        code = OK;
    }
    forget_lock();
    return code;
}
API nvmlDeviceGetGpuInstanceId(object *o, u32 *out) { ON(o, 'M'); *out = o->gi; return OK; }
API nvmlDeviceGetComputeInstanceId(object *o, u32 *out) { ON(o, 'M'); *out = o->ci; return OK; }

typedef struct { u32 id, p2p, slices, count, sms, copy, decoders, encoders, jpegs, ofas; u64 mib; } gi_profile_v1;
typedef struct { u32 version, id, p2p, slices, count, sms, copy, decoders, encoders, jpegs, ofas; u64 mib; char name[96]; } gi_profile_v2;
API nvmlDeviceGetGpuInstanceProfileInfo(object *o, u32 slot, gi_profile_v1 *out) {
    ON(o, 'D');
    const profile *p = profile_by(o->card, slot, -1);
    if (!p) return UNSUPPORTED;
    *out = (gi_profile_v1){.id = p->id, .slices = p->slices, .count = p->count, .sms = p->sms, .mib = p->mib};
    return OK;
}
API nvmlDeviceGetGpuInstanceProfileInfoV(object *o, u32 slot, gi_profile_v2 *out) {
    ON(o, 'D');
    if (out->version != 0x02000098) return BAD_VERSION;
    const profile *p = profile_by(o->card, slot, -1);
    if (!p) return UNSUPPORTED;
    *out = (gi_profile_v2){.version = out->version, .id = p->id, .slices = p->slices, .count = p->count, .sms = p->sms, .mib = p->mib};
    snprintf(out->name, sizeof out->name, "MIG %s", p->name);
    return OK;
}
typedef struct { u32 start, size; } placement;
API nvmlDeviceGetGpuInstancePossiblePlacements_v2(object *o, u32 id, placement *out, u32 *count) {
    ON(o, 'D');
    MIG_ON(o);
    const profile *p = profile_by(o->card, -1, id);
    u32 n = 0, room = *count;
    if (!p) return INVALID;
    for (const char *at = p->starts; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL, n++)
        if (out && n < room) out[n] = (placement){atoi(at), p->size};
    *count = n;
    return out && n > room ? TOO_SMALL : OK;
}
static int place(object *o, const profile *p, const placement *at, object **out) {
    int allowed = 0, id = p->slices == 7 ? 0 : 1, same = 0;
    for (const char *s = p->starts; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) allowed |= (u32)atoi(s) == at->start;
    if (!allowed || at->size != (u32)p->size) return INVALID;
    for (int i = 0; i < settings_n; i++) {
        const setting *s = &settings[i];
        if (strcmp(s->kind, "gi") || strcmp(s->uuid, UUID(o))) continue;
        if (at->start < s->c + s->d && s->c < at->start + at->size) return NO_ROOM;
        same += s->b == (u64)p->id;
    }
    if (same >= p->count) return NO_ROOM;
    while (find("gi", UUID(o), id, NONE_U64, NULL)) id++;
    setting *s = add("gi", UUID(o), "-");
    s->a = id; s->b = p->id; s->c = at->start; s->d = at->size;
    *out = make(&gis[o->card][id], 'G', o->card, id, 0);
    return OK;
}
API nvmlDeviceCreateGpuInstanceWithPlacement(object *o, u32 id, const placement *at, object **out) {
    ON(o, 'D');
    MIG_ON(o);
    const profile *p = profile_by(o->card, -1, id);
    if (!p) return INVALID;
    recall();
    int code = place(o, p, at, out);
    if (!code) keep();
    forget_lock();
    return code;
}
static int busy(object *o) {
    for (int k = 0; k < state.processes_n; k++) if (state.processes[k].card == o->card && state.processes[k].gi == o->gi) return 1;
    return 0;
}
API nvmlGpuInstanceDestroy(object *o) {
    ON(o, 'G');
    recall();
    setting *s = find("gi", UUID(o), o->gi, NONE_U64, NULL);
    int code = !s ? NOT_FOUND : busy(o) || find("ci", UUID(o), o->gi, NONE_U64, NULL) ? IN_USE : OK;
    if (!code) { drop(s); keep(); }
    forget_lock();
    return code;
}
API nvmlDeviceGetGpuInstances(object *o, u32 id, object **out, u32 *count) {
    ON(o, 'D');
    MIG_ON(o);
    u32 n = 0;
    recall();
    for (int i = 0; i < settings_n; i++)
        if (!strcmp(settings[i].kind, "gi") && !strcmp(settings[i].uuid, UUID(o)) && settings[i].b == id)
            out[n++] = make(&gis[o->card][settings[i].a], 'G', o->card, settings[i].a, 0);
    forget_lock();
    *count = n;
    return OK;
}
API nvmlDeviceGetGpuInstanceById(object *o, u32 id, object **out) {
    ON(o, 'D');
    MIG_ON(o);
    recall();
    int there = id < GIS && find("gi", UUID(o), id, NONE_U64, NULL) != NULL;
    forget_lock();
    if (there) *out = make(&gis[o->card][id], 'G', o->card, id, 0);
    return there ? OK : NOT_FOUND;
}
typedef struct { object *device; u32 id, profile; placement at; } gi_info;
API nvmlGpuInstanceGetInfo(object *o, gi_info *out) {
    ON(o, 'G');
    recall();
    setting *s = find("gi", UUID(o), o->gi, NONE_U64, NULL);
    if (s) *out = (gi_info){&devices[o->card], s->a, s->b, {s->c, s->d}};
    forget_lock();
    return s ? OK : NOT_FOUND;
}
static int gi_slices(object *o) {
    setting *s = find("gi", UUID(o), o->gi, NONE_U64, NULL);
    const profile *p = s ? profile_by(o->card, -1, s->b) : NULL;
    return p ? p->slices : 0;
}
typedef struct { u32 version, id, slices, count, sms, copy, decoders, encoders, jpegs, ofas; char name[96]; } ci_profile_v2;
typedef struct { u32 id, slices, count, sms, copy, decoders, encoders, jpegs, ofas; } ci_profile_v1;
static int ci_profile(object *o, u32 slot, int *slices) {
    recall();
    int all = gi_slices(o);
    forget_lock();
    if (slot >= sizeof CI_SLICES / sizeof *CI_SLICES || CI_SLICES[slot] > all) return UNSUPPORTED;
    *slices = CI_SLICES[slot];
    return OK;
}
API nvmlGpuInstanceGetComputeInstanceProfileInfoV(object *o, u32 slot, u32 engine, ci_profile_v2 *out) {
    (void)engine;
    ON(o, 'G');
    int slices = 0;
    if (out->version != 0x02000088) return BAD_VERSION;
    if (ci_profile(o, slot, &slices)) return UNSUPPORTED;
    *out = (ci_profile_v2){.version = out->version, .id = slot, .slices = slices, .count = 1};
    snprintf(out->name, sizeof out->name, "MIG %dc", slices);
    return OK;
}
API nvmlGpuInstanceGetComputeInstanceProfileInfo(object *o, u32 slot, u32 engine, ci_profile_v1 *out) {
    (void)engine;
    ON(o, 'G');
    int slices = 0;
    if (ci_profile(o, slot, &slices)) return UNSUPPORTED;
    *out = (ci_profile_v1){.id = slot, .slices = slices, .count = 1};
    return OK;
}
API nvmlGpuInstanceCreateComputeInstance(object *o, u32 id, object **out) {
    ON(o, 'G');
    u64 taken = 0, ci = 0;
    if (id >= sizeof CI_SLICES / sizeof *CI_SLICES) return INVALID;
    recall();
    int all = gi_slices(o), code = all ? OK : NOT_FOUND;
    for (int i = 0; i < settings_n; i++)
        if (!strcmp(settings[i].kind, "ci") && !strcmp(settings[i].uuid, UUID(o)) && settings[i].a == (u64)o->gi) taken += settings[i].c;
    if (!code && taken + CI_SLICES[id] > (u64)all) code = NO_ROOM;
    if (!code) {
        while (find("ci", UUID(o), o->gi, ci, NULL)) ci++;
        setting *s = add("ci", UUID(o), "-");
        s->a = o->gi; s->b = ci; s->c = CI_SLICES[id];
        *out = make(&cis[o->card][o->gi][ci], 'C', o->card, o->gi, ci);
        keep();
    }
    forget_lock();
    return code;
}
API nvmlGpuInstanceGetComputeInstanceById(object *o, u32 id, object **out) {
    ON(o, 'G');
    recall();
    int there = id < CIS && find("ci", UUID(o), o->gi, id, NULL) != NULL;
    forget_lock();
    if (there) *out = make(&cis[o->card][o->gi][id], 'C', o->card, o->gi, id);
    return there ? OK : NOT_FOUND;
}
API nvmlComputeInstanceDestroy(object *o) {
    ON(o, 'C');
    recall();
    setting *s = find("ci", UUID(o), o->gi, o->ci, NULL);
    int code = !s ? NOT_FOUND : busy(o) ? IN_USE : OK;
    if (!code) { drop(s); keep(); }
    forget_lock();
    return code;
}
