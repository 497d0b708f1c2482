// Reads a JSON array of texts from stdin; writes how many tokens of o200k_base each has.
import { readFileSync } from "node:fs";
import { getEncoding } from "js-tiktoken";

const encoding = getEncoding("o200k_base");
const texts = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(texts.map((text) => encoding.encode(text, [], []).length)));
