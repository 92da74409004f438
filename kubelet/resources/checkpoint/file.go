package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
)

// maxSize is the largest size of a file: some hundred bytes a container.
const maxSize = 16 << 20

// Content is the content of the state file of a manager that has policies.
type Content interface {
	// Policy returns the policy whose decisions the file has.
	Policy() string
	// Stored returns the checksum in the file; 0 if it has none, which is not checked.
	Stored() Sum
	// Sums returns the checksums that the file may have: first that of files which upstream writes, then those of other releases.
	Sums() []Sum
	// Check returns an error for values that cannot be, after the JSON was decoded.
	Check() error
}

// File is the state file of a manager.
type File struct {
	// Dir is the kubelet's directory, Name the name of the file.
	Dir, Name string
	// Manager names the manager in errors, "CPU manager".
	Manager string
}

// ErrDamaged says that the file at the path is none that a kubelet has written, or has changed since.
var ErrDamaged = errors.New("damaged")

// policies are those of all managers.
var policies = []string{"none", "static", "None", "Static", "BestEffort"}

// Path returns the path of the file.
func (f File) Path() string { return filepath.Join(f.Dir, f.Name) }

// Read decodes the file of a policy into the content. found is false if there is none. A file that is damaged, or of another policy,
// is an error; that of a damaged one wraps ErrDamaged.
func (f File) Read(policy string, into Content) (found bool, err error) {
	data, err := statefile.Read(f.Path(), maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	switch {
	case err == nil:
		err = decode(data, policy, into)
	case errors.Is(err, statefile.ErrDamaged):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return false, fmt.Errorf("read the %s's state %s: %w; drain the node and remove the file", f.Manager, f.Path(), err)
	}
	return true, nil
}

// Open is Read for the start of a manager. A damaged file is set aside, and found is false then: the Pods of the node are admitted anew, so
// that containers get what they are to have for themselves, perhaps not what they had. effect says what that means; it is empty if the policy
// gives containers nothing of their own.
func (f File) Open(logger *slog.Logger, policy, effect string, into Content) (found bool, err error) {
	found, err = f.Read(policy, into)
	if !errors.Is(err, ErrDamaged) {
		return found, err
	}
	statefile.SetAside(logger, f.Path(), err, cmp.Or(effect, "none: the policy of the "+f.Manager+" gives containers nothing of their own"))
	return false, nil
}

func decode(data []byte, policy string, into Content) error {
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: not a state: %w", ErrDamaged, err)
	}
	stored, sums := into.Stored(), into.Sums()
	if stored != 0 && !slices.Contains(sums, stored) {
		return fmt.Errorf("%w: its checksum is %d, that of its content is %d", ErrDamaged, stored, sums[0])
	}
	if !slices.Contains(policies, into.Policy()) {
		return fmt.Errorf("%w: it is of the policy %q", ErrDamaged, into.Policy())
	}
	if into.Policy() != policy {
		return fmt.Errorf("configured policy %q differs from state checkpoint policy %q", policy, into.Policy())
	}
	if err := into.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// Write replaces the file.
func (f File) Write(content Content) error {
	data, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("write the %s's state: %w", f.Manager, err)
	}
	if err := atomicfile.Write(f.Path(), data, 0o600); err != nil {
		return fmt.Errorf("write the %s's state: %w", f.Manager, err)
	}
	return nil
}

// Mismatch returns the error for a file that does not match the machine or the configuration.
func (f File) Mismatch(err error) error {
	return fmt.Errorf("the %s's state %s does not match: %w; drain the node and remove the file", f.Manager, f.Path(), err)
}
