/* Starts a Cortex-M4F and talks to the machine that emulates it (semihosting). */

#include <stdint.h>

#include "board.h"

extern uint32_t flash_end[], data_start[], data_end[], bss_start[], bss_end[], stack_bottom[], stack_top[];

int main(void);

#define UNTOUCHED 0xdeadbeefu

static int semihosting(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void print(const char *text)
{
    semihosting(0x04, text); /* SYS_WRITE0 */
}

void print_number(uint32_t number)
{
    char digits[11];
    int at = 10;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + number % 10u);
        number /= 10u;
    } while (number);
    print(digits + at);
}

void leave(void)
{
    semihosting(0x18, (const void *)0x20026); /* SYS_EXIT, ADP_Stopped_ApplicationExit */
    for (;;) {
    }
}

/* SysTick counts down from 2^24 - 1, once for every 40 ns. With qemu's -icount shift=0 an instruction takes 1 ns. */
void clock_start(void)
{
    *(volatile uint32_t *)0xe000e014 = 0x00ffffffu;
    *(volatile uint32_t *)0xe000e018 = 0;
    *(volatile uint32_t *)0xe000e010 = 5u; /* the processor's clock, no interrupt */
}

uint32_t clock_ticks(void)
{
    return 0u - *(volatile uint32_t *)0xe000e018;
}

uint32_t clock_since(uint32_t start)
{
    return (clock_ticks() - start) & 0x00ffffffu;
}

/* How many bytes of the stack were ever written to. */
uint32_t stack_used(void)
{
    const uint32_t *at = stack_bottom;
    while (at < stack_top && *at == UNTOUCHED)
        at++;
    return (uint32_t)((const char *)stack_top - (const char *)at);
}

void stack_paint(void)
{
    const uint32_t *used;
    __asm__ volatile("mov %0, sp" : "=r"(used));
    for (uint32_t *at = stack_bottom; at < used; at++)
        *at = UNTOUCHED;
}

void reset(void)
{
    const uint32_t *from = flash_end;
    *(volatile uint32_t *)0xe000ed88 |= 0x00f00000u; /* CPACR: the floating-point unit */
    __asm__ volatile("dsb\n\tisb");
    for (uint32_t *to = data_start; to < data_end;)
        *to++ = *from++;
    for (uint32_t *to = bss_start; to < bss_end;)
        *to++ = 0;
    main();
    leave();
}

static void fault(void)
{
    print("fault\n");
    leave();
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (const void *)reset, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault,
};
