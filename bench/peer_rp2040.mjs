// Runs an image on an emulated RP2040 between its first and second breakpoint, and writes one JSON object: cycles by
// rp2040js, and for each address how often it was executed and how often the next one was not the one behind it.
//   node peer_rp2040.mjs MODULES image.bin ADDRESS ENTRY STACK
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modules, image, address, entry, stack] = process.argv.slice(2);
const { RP2040 } = await import(pathToFileURL(`${modules}/rp2040js/dist/esm/index.js`));
const chip = new RP2040();
const core = chip.core;
const bytes = readFileSync(image);
for (let i = 0; i < bytes.length; i++) chip.writeUint8(Number(address) + i, bytes[i]);
core.SP = Number(stack);
core.PC = Number(entry) & ~1;

let breaks = 0;
chip.onBreak = () => { breaks++; };
const runUntil = (count, each) => {
  while (breaks < count) {
    const at = core.PC;
    core.executeInstruction();
    if (each) each(at, core.PC);
  }
};
runUntil(1);
const executed = new Map();
const left = new Map();
const before = core.cycles;
runUntil(2, (at, next) => {
  executed.set(at, (executed.get(at) ?? 0) + 1);
  const size = chip.readUint16(at) >> 11 > 0b11100 ? 4 : 2;
  if (next !== at + size) left.set(at, (left.get(at) ?? 0) + 1);
});
const cycles = core.cycles - before;
console.log(JSON.stringify({ cycles, executed: [...executed], left: [...left] }));
