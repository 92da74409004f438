package vm

import "time"

// readTSC returns the processor's time stamp counter.
func readTSC() uint64

// tscSample is for how long the counter is watched: its frequency is then known to a thousandth.
const tscSample = 100 * time.Millisecond

// tscKHz returns the frequency of the time stamp counter, which an emulated processor has in common with this machine's.
func tscKHz() uint64 {
	beganTicks, began := tscAndTime()
	time.Sleep(tscSample)
	endedTicks, ended := tscAndTime()
	return (endedTicks - beganTicks) * uint64(time.Millisecond) / uint64(ended.Sub(began))
}

// tscAndTime reads the counter and the clock at the same time, as far as possible: the best of some attempts, of which others may have taken
// the processor away in between.
func tscAndTime() (ticks uint64, at time.Time) {
	shortest := uint64(0)
	for i := range 10 {
		before, now, after := readTSC(), time.Now(), readTSC()
		if gap := after - before; i == 0 || gap < shortest {
			shortest, ticks, at = gap, before+gap/2, now
		}
	}
	return ticks, at
}
