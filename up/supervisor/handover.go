package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/signals"
)

// planVariable is the environment variable with the descriptor of the plan.
const planVariable = "BERTH_SUPERVISOR_PLAN"

// Exec replaces this process by the supervisor, whose program is at path, with the plan. argv is the command line that people
// see. The supervisor inherits the plan's Files. Exec returns only with an error.
func Exec(path string, argv []string, plan Plan) error {
	data, err := json.Marshal(plan)
	if err != nil {
		return fmt.Errorf("start %s: %w", ProgramName, err)
	}
	fd, err := unix.MemfdCreate(ProgramName, 0) // it has no name that others could open, and is inherited
	if err != nil {
		return fmt.Errorf("start %s: make its configuration: %w", ProgramName, err)
	}
	file := os.NewFile(uintptr(fd), ProgramName)
	defer file.Close()
	if _, err := file.WriteAt(data, 0); err != nil {
		return fmt.Errorf("start %s: write its configuration: %w", ProgramName, err)
	}
	for _, inherited := range plan.Files {
		if _, err := unix.FcntlInt(uintptr(inherited), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("start %s: pass descriptor %d: %w", ProgramName, inherited, err)
		}
	}
	if err := signals.KeepParentDeathSignal(); err != nil {
		return err
	}
	err = unix.Exec(path, argv, append(os.Environ(), planVariable+"="+strconv.Itoa(fd)))
	return fmt.Errorf("start %s: %w", path, err)
}

// ReadPlan returns the plan that Exec has handed over. Programs that this process starts inherit neither it nor its Files.
func ReadPlan() (Plan, error) {
	var plan Plan
	fd, err := strconv.Atoi(os.Getenv(planVariable))
	if err != nil {
		return plan, errors.New("it is started by berth up and berth node --join only")
	}
	file := os.NewFile(uintptr(fd), ProgramName)
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
	if err == nil {
		err = json.Unmarshal(data, &plan)
	}
	if err != nil {
		return plan, fmt.Errorf("read its configuration: %w", err)
	}
	for _, inherited := range plan.Files {
		unix.CloseOnExec(inherited)
	}
	return plan, os.Unsetenv(planVariable)
}
