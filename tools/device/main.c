/* Runs model.c on the sequences in sequences.h and prints, one line each:
   class of a sequence and the bits of its first output; then instructions in units of 40, bytes of stack. */

#include <string.h>

#include "board.h"
#include "model.h"
#include "sequences.h"

static model_state state;

/* A loop of 3 instructions for each turn, to check how instructions are counted. */
__attribute__((noinline)) static uint32_t known_loop(uint32_t turns)
{
    const uint32_t start = clock_ticks();
    __asm__ volatile("1:\n\tnop\n\tsubs %0, %0, #1\n\tbne 1b" : "+r"(turns) : : "cc");
    return clock_since(start);
}

int main(void)
{
    float y[MODEL_OUTPUTS];
    uint32_t ticks = 0;
    stack_paint();
    clock_start();
    print("loop ");
    print_number(known_loop(1000000));
    print("\n");
    model_init(&state);
    for (int n = 0; n < SEQUENCES; n++) {
        uint32_t bits, start;
        clock_start();
        start = clock_ticks();
        model_reset(&state);
        for (int t = 0; t < STEPS; t++)
            model_step(&state, sequences + (n * STEPS + t) * MODEL_INPUTS, t + 1 < STEPS ? 0 : y);
        ticks += clock_since(start);
        memcpy(&bits, y, sizeof bits);
        print("class ");
        print_number((uint32_t)model_class(y));
        print(" ");
        print_number(bits);
        print("\n");
    }
    print("ticks ");
    print_number(ticks);
    print("\nstack ");
    print_number(stack_used());
    print("\n");
    return 0;
}
