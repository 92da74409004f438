package report

import (
	"math"
	"strconv"
)

// axis maps values to places: by their logarithm if they span much, evenly from 0 otherwise.
type axis struct {
	from, to float64
	min, max float64
	zero     bool // a value of 0 is among them
}

// muchSpan is what the highest value must be of the lowest for a logarithmic axis.
const muchSpan = 50

func (a *axis) include(value float64) {
	if value <= 0 {
		a.zero = true
		return
	}
	if a.min == 0 || value < a.min {
		a.min = value
	}
	a.max = math.Max(a.max, value)
}

func (a *axis) logarithmic() bool { return !a.zero && a.min > 0 && a.max/a.min >= muchSpan }

// bounds are the values at the axis' ends: powers of ten, or 0 and a round number.
func (a *axis) bounds() (low, high float64) {
	if a.logarithmic() {
		return math.Pow(10, math.Floor(math.Log10(a.min))), math.Pow(10, math.Ceil(math.Log10(a.max)))
	}
	if a.max == 0 {
		return 0, 1
	}
	step := a.step()
	return 0, step * math.Ceil(a.max/step)
}

// step is the distance of marks on an even axis: 1, 2 or 5 times a power of ten, so that there are three to six.
func (a *axis) step() float64 {
	unit := math.Pow(10, math.Floor(math.Log10(a.max)))
	for _, part := range []float64{0.2, 0.5, 1, 2} {
		if a.max/(unit*part) <= 6 {
			return unit * part
		}
	}
	return unit * 5
}

// marks are the values to be written along the axis.
func (a *axis) marks() []float64 {
	low, high := a.bounds()
	var marks []float64
	if a.logarithmic() {
		for value := low; value <= high*1.001; value *= 10 {
			marks = append(marks, value)
		}
		return marks
	}
	step := high
	if a.max > 0 {
		step = a.step()
	}
	for i := 0; float64(i)*step <= high*1.001; i++ {
		marks = append(marks, float64(i)*step)
	}
	return marks
}

// at is the place of a value.
func (a *axis) at(value float64) float64 {
	low, high := a.bounds()
	if a.logarithmic() {
		value = math.Max(value, low)
		return a.from + (a.to-a.from)*math.Log10(value/low)/math.Log10(high/low)
	}
	return a.from + (a.to-a.from)*(value-low)/(high-low)
}

// mark writes a value of a scale: without the digits that say nothing.
func mark(v float64) string {
	if v >= 10_000 {
		return number(v)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
