/* Runs the library that was built without std: 10 of 50 pass at first, 5 of 50 a second later at the new rate. */
#include <stdint.h>
#include <stdio.h>

uint32_t admitted(uint32_t calls);

/* The prebuilt `alloc` names it; nothing unwinds here. */
void rust_eh_personality(void) {}

int main(void) {
    uint32_t passed = admitted(50);
    printf("without std: %u of 100 calls passed\n", passed);
    return passed == 15 ? 0 : 1;
}
