-- Follows the prelude in the scripts for several locks. Reads all records at once and prepares the reply: one MGET
-- costs a third of the GETs. MGET returns nothing for a value that is not a string, so a script must not overwrite a
-- record that seems to be missing.

if locks > 1 then raws, seen, replies, codes = call('MGET', spread(KEYS)), {}, {now, ''}, {} end
