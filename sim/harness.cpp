// The simulated board: the Verilated accelerator, its clock, and the memory behind its AXI ports. C ABI for sim/board.py.
//
// One clock cycle is two evaluations: with the clock low the inputs settle and the handshakes of the cycle are known,
// then comes the rising edge. What the board drives changes after the edge, as registers would, so no ready or valid of
// the memory depends on the accelerator within a cycle.
//
// ports.inc is generated for the build (sim/build.py): the number of ports, their names, and the binding of their pins.
#include <sys/mman.h>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#if defined(BOARD_TRACE_FST)
#include "verilated_fst_c.h"
using Trace = VerilatedFstC;
#elif defined(BOARD_TRACE_VCD)
#include "verilated_vcd_c.h"
using Trace = VerilatedVcdC;
#endif

namespace {

constexpr int kBeat = 64;
constexpr uint8_t kOkay = 0, kSlaveError = 2, kDecodeError = 3;
constexpr uint64_t kPage = 4096;

struct ReadPins {
    QData* araddr; CData* arlen; CData* arsize; CData* arburst; CData* arvalid; CData* arready;
    EData* rdata; CData* rresp; CData* rlast; CData* rvalid; CData* rready;
};

struct WritePins {
    QData* awaddr; CData* awlen; CData* awsize; CData* awburst; CData* awvalid; CData* awready;
    EData* wdata; QData* wstrb; CData* wlast; CData* wvalid; CData* wready;
    CData* bresp; CData* bvalid; CData* bready;
};

#include "ports.inc"

// Verilator writes the second of two underscores as its code.
#define CSR(pin) top.csr___05F##pin

// Mirrored by sim/memory.py, which documents the fields.
struct Settings {
    double bytes_per_cycle;
    double stall_probability;
    uint64_t seed;
    uint32_t latency;
    uint32_t outstanding;
};

struct Fault {
    uint64_t begin, end;
    bool reads, writes, silent;
};

struct Random {  // xorshift64*
    uint64_t state = 1;
    void seed(uint64_t value) { state = (value + 1) * 0x9E3779B97F4A7C15ull | 1; }
    uint32_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return uint32_t(state * 0x2545F4914F6CDD1Dull >> 32);
    }
};

struct Burst {
    uint64_t address, due;
    uint32_t beats;
    uint8_t response;
    bool silent;
};

struct Address {  // an address channel in a cycle
    bool valid;
    uint64_t address;
    uint32_t length, size, type;
    bool operator!=(const Address& o) const {
        return valid != o.valid || address != o.address || length != o.length || size != o.size || type != o.type;
    }
};

struct Word {
    uint8_t bytes[kBeat];
    uint64_t strobe;
    bool last;
};

struct Port {
    int index = 0;
    bool writes = false;
    ReadPins r{};
    WritePins w{};
    double tokens = 0;                  // bytes that the port may move now
    Address held_ar{}, held_aw{};       // offered and not yet taken
    Word held_w{};
    bool w_is_held = false, r_taken = false, b_taken = false;
    std::deque<Burst> reads;            // accepted, oldest first
    std::deque<Burst> addresses;        // AW whose W beats are not complete
    std::deque<Word> words;             // W beats ahead of their AW
    std::deque<Burst> answers;          // writes that wait for their B
    uint32_t sent = 0, received = 0;    // beats of the front burst
    uint64_t read_beats = 0, write_beats = 0;
};

struct Board {
    VerilatedContext context;
    std::unique_ptr<Vtop> top_owner{new Vtop{&context}};
    Vtop& top = *top_owner;
    uint8_t* memory = nullptr;
    uint64_t memory_bytes = 0, cycles = 0;
    Settings settings{64, 0, 0, 60, 16};
    uint32_t stall_below = 0;           // a 32-bit random number below this is a stall
    Random random;
    Port ports[kPorts];
    std::vector<Fault> faults;
    uint64_t violations = 0;
    std::string violation;              // the first one
    struct { bool aw, w, b, ar, r, interrupt; uint32_t rdata; } lite{};
#if defined(BOARD_TRACE_FST) || defined(BOARD_TRACE_VCD)
    std::unique_ptr<Trace> trace;
    void dump(int half) { if (trace) trace->dump(cycles * 2 + half); }
#else
    void dump(int) {}
#endif

    bool stalled() { return stall_below && random.next() < stall_below; }

    void report(const Port& p, const char* rule, uint64_t value) {
        if (violations++) return;
        char text[256];
        snprintf(text, sizeof text, "cycle %llu, port %s: %s (0x%llx)", (unsigned long long)cycles, kPortNames[p.index],
                 rule, (unsigned long long)value);
        violation = text;
    }

    Burst accept(const Port& p, const Address& a, bool write) {
        Burst b{a.address, cycles + settings.latency, a.length + 1, kOkay, false};
        const uint64_t bytes = uint64_t(b.beats) * kBeat;
        if (a.size != 6) report(p, "AxSIZE must be 6 (full beats)", a.size);
        if (a.type != 1) report(p, "AxBURST must be 1 (INCR)", a.type);
        if (a.address % kBeat) report(p, "address is not aligned to a beat", a.address);
        if (a.address / kPage != (a.address + bytes - 1) / kPage) report(p, "burst crosses a 4 KiB boundary", a.address);
        if (a.address > memory_bytes || bytes > memory_bytes - a.address) b.response = kDecodeError;
        for (const Fault& f : faults) {
            if (!(write ? f.writes : f.reads) || a.address >= f.end || f.begin >= a.address + bytes) continue;
            if (f.silent) b.silent = true;
            else b.response = kSlaveError;
        }
        return b;
    }

    // The sample functions look at the settled pins before the clock edge and change no pin.
    void sample_read(Port& p) {
        const ReadPins& r = p.r;
        const Address a{bool(*r.arvalid), *r.araddr, *r.arlen, *r.arsize, *r.arburst};
        if (p.held_ar.valid && p.held_ar != a) report(p, "AR changed or withdrawn while ARREADY was low", a.address);
        const bool taken = a.valid && *r.arready;
        p.held_ar.valid = false;
        if (taken) p.reads.push_back(accept(p, a, false));
        else if (a.valid) p.held_ar = a;
        p.r_taken = *r.rvalid && *r.rready;
    }

    void drive_read(Port& p) {
        const ReadPins& r = p.r;
        if (p.r_taken) {
            *r.rvalid = 0;
            p.read_beats++;
            if (++p.sent == p.reads.front().beats) {
                p.reads.pop_front();
                p.sent = 0;
            }
        }
        *r.arready = p.reads.size() < settings.outstanding && !stalled();
        if (*r.rvalid || p.reads.empty()) return;
        const Burst& b = p.reads.front();
        if (b.silent || b.due > cycles + 1 || p.tokens < kBeat || stalled()) return;
        p.tokens -= kBeat;
        if (b.response == kDecodeError) memset(r.rdata, 0, kBeat);
        else memcpy(r.rdata, memory + b.address + uint64_t(p.sent) * kBeat, kBeat);
        *r.rresp = b.response;
        *r.rlast = p.sent + 1 == b.beats;
        *r.rvalid = 1;
    }

    void sample_write(Port& p) {
        const WritePins& w = p.w;
        const Address a{bool(*w.awvalid), *w.awaddr, *w.awlen, *w.awsize, *w.awburst};
        if (p.held_aw.valid && p.held_aw != a) report(p, "AW changed or withdrawn while AWREADY was low", a.address);
        const bool taken = a.valid && *w.awready;
        p.held_aw.valid = false;
        if (taken) p.addresses.push_back(accept(p, a, true));
        else if (a.valid) p.held_aw = a;

        if (*w.wvalid || p.w_is_held) sample_word(p);
        p.b_taken = *w.bvalid && *w.bready;
    }

    void sample_word(Port& p) {
        const WritePins& w = p.w;
        Word word;
        memcpy(word.bytes, w.wdata, kBeat);
        word.strobe = *w.wstrb;
        word.last = *w.wlast;
        const Word& held = p.held_w;
        if (p.w_is_held && (!*w.wvalid || word.last != held.last || word.strobe != held.strobe ||
                            memcmp(word.bytes, held.bytes, kBeat)))
            report(p, "W changed or withdrawn while WREADY was low", 0);
        const bool taken = *w.wvalid && *w.wready;
        p.w_is_held = *w.wvalid && !taken;
        if (p.w_is_held) p.held_w = word;
        if (!taken) return;
        p.words.push_back(word);
        p.tokens -= kBeat;
        p.write_beats++;
    }

    void store_words(Port& p) {
        while (!p.words.empty() && !p.addresses.empty()) {
            Burst& b = p.addresses.front();
            const Word& word = p.words.front();
            if (word.last != (p.received + 1 == b.beats)) report(p, "WLAST is not on the last beat of its burst", b.address);
            if (b.response == kOkay) {
                uint8_t* at = memory + b.address + uint64_t(p.received) * kBeat;
                for (int i = 0; i < kBeat; i++) if (word.strobe >> i & 1) at[i] = word.bytes[i];
            }
            p.words.pop_front();
            if (++p.received < b.beats) continue;
            b.due = cycles + settings.latency;
            p.answers.push_back(b);
            p.addresses.pop_front();
            p.received = 0;
        }
    }

    void drive_write(Port& p) {
        const WritePins& w = p.w;
        store_words(p);
        if (p.b_taken) {
            *w.bvalid = 0;
            p.answers.pop_front();
        }
        *w.awready = p.addresses.size() + p.answers.size() < settings.outstanding && !stalled();
        *w.wready = p.words.size() < settings.outstanding && p.tokens >= kBeat && !stalled();
        if (*w.bvalid || p.answers.empty()) return;
        const Burst& b = p.answers.front();
        if (b.silent || b.due > cycles + 1 || stalled()) return;
        *w.bresp = b.response;
        *w.bvalid = 1;
    }

    void step() {
        top.clk = 0;
        top.eval();
        dump(0);
        for (Port& p : ports) {
            sample_read(p);
            if (p.writes) sample_write(p);
        }
        lite = {CSR(awvalid) && CSR(awready), CSR(wvalid) && CSR(wready),
                CSR(bvalid) && CSR(bready), CSR(arvalid) && CSR(arready),
                CSR(rvalid) && CSR(rready), bool(top.__SYM__interrupt), CSR(rdata)};
        top.clk = 1;
        top.eval();
        dump(1);
        cycles++;
        for (Port& p : ports) {
            p.tokens = std::min(p.tokens + settings.bytes_per_cycle, settings.bytes_per_cycle + kBeat);
            drive_read(p);
            if (p.writes) drive_write(p);
        }
    }

    bool write_register(uint32_t address, uint32_t value, uint64_t limit) {
        bool aw = false, w = false, b = false;
        CSR(awaddr) = address;
        CSR(wdata) = value;
        CSR(wstrb) = 15;
        for (; limit && !b; limit--) {
            if (!aw) CSR(awvalid) = CSR(awvalid) || !stalled();
            if (!w) CSR(wvalid) = CSR(wvalid) || !stalled();
            CSR(bready) = !stalled();
            step();
            if (lite.aw) { aw = true; CSR(awvalid) = 0; }
            if (lite.w) { w = true; CSR(wvalid) = 0; }
            b = lite.b;
        }
        CSR(awvalid) = CSR(wvalid) = CSR(bready) = 0;
        return b;
    }

    bool read_register(uint32_t address, uint32_t* value, uint64_t limit) {
        bool ar = false, r = false;
        CSR(araddr) = address;
        for (; limit && !r; limit--) {
            if (!ar) CSR(arvalid) = CSR(arvalid) || !stalled();
            CSR(rready) = !stalled();
            step();
            if (lite.ar) { ar = true; CSR(arvalid) = 0; }
            r = lite.r;
        }
        CSR(arvalid) = CSR(rready) = 0;
        *value = lite.rdata;
        return r;
    }
};

}  // namespace

extern "C" {

// A board after reset, or null when the address space cannot be reserved. Pages of the memory exist once touched.
Board* board_open(uint64_t memory_bytes) {
    void* memory = mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    Board* b = new Board;
    b->memory = static_cast<uint8_t*>(memory);
    b->memory_bytes = memory_bytes;
    for (int i = 0; i < kPorts; i++) b->ports[i].index = i;
    bind_ports(b->top, b->ports);
    b->random.seed(0);
    return b;
}

void board_close(Board* b) {
#if defined(BOARD_TRACE_FST) || defined(BOARD_TRACE_VCD)
    if (b->trace) b->trace->close();
#endif
    b->top.final();
    munmap(b->memory, b->memory_bytes);
    delete b;
}

// Starts a waveform; false in a build without tracing.
bool board_trace(Board* b, const char* path) {
#if defined(BOARD_TRACE_FST) || defined(BOARD_TRACE_VCD)
    b->context.traceEverOn(true);
    b->trace.reset(new Trace);
    b->top.trace(b->trace.get(), 99);
    b->trace->open(path);
    return true;
#else
    (void)b, (void)path;
    return false;
#endif
}

void board_reset(Board* b) {
    b->top.rst = 1;
    for (int i = 0; i < 4; i++) b->step();
    b->top.rst = 0;
    b->step();
}

void board_settings(Board* b, const Settings* settings) {
    b->settings = *settings;
    b->stall_below = uint32_t(settings->stall_probability * 4294967295.0);
    b->random.seed(settings->seed);
}

void board_add_fault(Board* b, uint64_t begin, uint64_t end, bool reads, bool writes, bool silent) {
    b->faults.push_back({begin, end, reads, writes, silent});
}

// Bursts that a silent fault swallowed, and those queued behind them, are dropped, as a reset of the memory would.
void board_clear_faults(Board* b) {
    b->faults.clear();
    for (Port& p : b->ports) {
        for (auto* queue : {&p.reads, &p.addresses, &p.answers}) {
            auto silent = std::find_if(queue->begin(), queue->end(), [](const Burst& burst) { return burst.silent; });
            queue->erase(silent, queue->end());
        }
    }
}

uint8_t* board_memory(Board* b) { return b->memory; }
uint64_t board_cycles(const Board* b) { return b->cycles; }
uint64_t board_read_beats(const Board* b, int port) { return b->ports[port].read_beats; }
uint64_t board_write_beats(const Board* b, int port) { return b->ports[port].write_beats; }
uint64_t board_violations(const Board* b) { return b->violations; }
const char* board_violation(const Board* b) { return b->violation.c_str(); }

bool board_write_csr(Board* b, uint32_t address, uint32_t value, uint64_t limit) { return b->write_register(address, value, limit); }
bool board_read_csr(Board* b, uint32_t address, uint32_t* value, uint64_t limit) { return b->read_register(address, value, limit); }

// Runs until the interrupt is up; false when it is not after `limit` cycles.
bool board_wait(Board* b, uint64_t limit) {
    for (; limit; limit--) {
        b->step();
        if (b->lite.interrupt) return true;
    }
    return false;
}

void board_run(Board* b, uint64_t count) {
    while (count--) b->step();
}

}  // extern "C"
